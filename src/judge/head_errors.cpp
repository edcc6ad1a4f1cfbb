#include "judge/head_errors.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace kda_check::judge {

namespace {

/// Shares of the envelope that it is at least: of what twins err by in the chunk, of half a step of storage.
constexpr double floor_of_chunk = 1.0 / 256, floor_of_storage = 1.0 / 16;
/// Where a row has fewer independent errors, what a twin errs by in it is taken from its neighbours too, and
/// at least a quarter of its own.
constexpr double fewest_errors = 32;
constexpr double least_of_own = 1.0 / 4;
/// Below everything that is not zero; twins that are exact ask for exactness.
constexpr double nothing = 1e-30;
/// Beyond these an error is as large as any: squares and their sums stay numbers in fp32. The first is in
/// units of the largest value of a row, the second in those of the envelope.
constexpr double largest_error = 1e12;
constexpr float largest_excess = 1e15F;

/// One of every sixteen columns: independent sums that the compiler may compute at once.
struct Sixteen {
  std::array<float, tile_side> sums{};
  double total() const {
    float sum = 0;
    for (const float one : sums) sum += one;
    return static_cast<double>(sum);
  }
};

/// Rows are kept in units of a power of two near their largest value, as the values of a head may be
/// hundreds of binary orders apart and squares of fp32 may not; where the truth is zero in those of the head.
class Units {
  static constexpr int farthest = 500;  ///< below the head, so that squares are numbers of fp64

 public:
  Units(const std::vector<double>& truth, std::size_t rows, std::size_t stride) : exponents_(rows) {
    std::vector<double> largest(rows, 0.0);
    double of_all = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t v = 0; v < stride; ++v)
        if (const double x = std::fabs(truth[r * stride + v]); x <= std::numeric_limits<double>::max())
          largest[r] = std::max(largest[r], x);
      of_all = std::max(of_all, largest[r]);
    }
    of_head_ = of_all > 0 ? std::ilogb(of_all) : 0;
    for (std::size_t r = 0; r < rows; ++r)
      exponents_[r] = largest[r] > 0 ? std::max(std::ilogb(largest[r]), of_head_ - farthest) : of_head_;
  }
  int of_head() const { return of_head_; }
  /// From values to the unit of a row.
  double to_row(std::size_t row) const { return std::ldexp(1.0, std::clamp(-exponents_[row], -1022, 1023)); }
  /// From squares in the unit of a row to squares in that of the head.
  double squares_to_head(std::size_t row) const { return std::ldexp(1.0, 2 * (exponents_[row] - of_head_)); }

 private:
  std::vector<int> exponents_;
  int of_head_ = 0;
};

/// By row, over the columns, in the units of the head: of (y - x)^2 and of (y - x) x.
struct RowSums {
  std::vector<double> squares, along;
  double total = 0;  ///< of squares
};

/// Leaves y - x in `y`, in the units of rows.
RowSums take_errors(std::vector<float>& y, const std::vector<double>& truth, const std::vector<float>& x,
                    const Units& units, std::size_t rows, std::size_t stride) {
  RowSums sums{std::vector<double>(rows), std::vector<double>(rows)};
  for (std::size_t r = 0; r < rows; ++r) {
    const double unit = units.to_row(r), squares_to_head = units.squares_to_head(r);
    Sixteen squares, along;
    for (std::size_t begin = r * stride; begin < (r + 1) * stride; begin += tile_side) {
      float* const error = &y[begin];
      const double* const exact = &truth[begin];
      const float* const scaled = &x[begin];
      for (std::size_t i = 0; i < tile_side; ++i) {
        const double e = (static_cast<double>(error[i]) - exact[i]) * unit;  // NaN stays
        error[i] = static_cast<float>(std::max(std::min(e, largest_error), -largest_error));
      }
      for (std::size_t i = 0; i < tile_side; ++i)
        squares.sums[i] += error[i] * error[i], along.sums[i] += error[i] * scaled[i];
    }
    sums.squares[r] = squares.total() * squares_to_head;
    sums.along[r] = along.total() * squares_to_head;
    sums.total += sums.squares[r];
  }
  return sums;
}

/// What twins err by in each row, squared, the mean over its columns: the most of all of them.
class Envelope {
 public:
  Envelope(const RowLayout& layout, const RowCells& chunk_of, const std::vector<double>& truth_squares,
           const std::vector<RowSums>& fields, const std::vector<bool>& fit, double storage_unit)
      : layout_(layout), chunk_of_(chunk_of), truth_(truth_squares), unit_(storage_unit) {
    const std::size_t R = layout.rows;
    most_.assign(R, 0.0), next_.assign(R, 0.0), who_.assign(R, 0);
    for (std::size_t f = 0; f < fit.size(); ++f) {
      if (!fit[f]) continue;
      const std::vector<double> mean = smoothed(fields[f]);
      for (std::size_t r = 0; r < R; ++r) {
        if (mean[r] > most_[r])
          next_[r] = most_[r], most_[r] = mean[r], who_[r] = f;
        else
          next_[r] = std::max(next_[r], mean[r]);
      }
    }
  }

  std::vector<double> of_all() const { return with_floors(most_); }
  std::vector<double> without(std::size_t twin) const {
    std::vector<double> others(layout_.rows);
    for (std::size_t r = 0; r < others.size(); ++r) others[r] = who_[r] == twin ? next_[r] : most_[r];
    return with_floors(std::move(others));
  }

 private:
  /// Means over the columns. A row of few independent errors - narrow, or all along the truth - may be
  /// right by luck: what it is given is that of its neighbours too, by size or in relation to the truth.
  std::vector<double> smoothed(const RowSums& sums) const {
    const std::size_t R = layout_.rows, V = layout_.width;
    const double width = static_cast<double>(V);
    const std::size_t narrow = reach_for(width), coherent = reach_for(width / coherence(sums));
    std::vector<double> relative(R, 0.0);
    for (std::size_t r = 0; r < R; ++r)
      if (truth_[r] > 0) relative[r] = sums.squares[r] / truth_[r];
    const std::vector<double> by_size = means(sums.squares, narrow), by_truth = means(relative, coherent);
    std::vector<double> mean(R);
    for (std::size_t r = 0; r < R; ++r) {
      if (narrow == 0 && coherent == 0)
        mean[r] = sums.squares[r] / width;
      else
        mean[r] = std::max({narrow > 0 ? by_size[r] : 0, coherent > 0 ? by_truth[r] * truth_[r] : 0,
                            sums.squares[r] * least_of_own}) /
                  width;
    }
    return mean;
  }

  /// Rows on either side that make up enough errors.
  static std::size_t reach_for(double independent) {
    return independent >= fewest_errors
               ? 0
               : static_cast<std::size_t>(std::ceil(fewest_errors / independent)) - 1;
  }

  /// Of one twin: the mean share of a row's energy along the truth, in units of what independent errors have.
  double coherence(const RowSums& sums) const {
    double shares = 0, rows = 0;
    for (std::size_t r = 0; r < layout_.rows; ++r)
      if (sums.squares[r] > 0 && truth_[r] > 0)
        shares += sums.along[r] / sums.squares[r] * (sums.along[r] / truth_[r]), rows += 1;
    const double width = static_cast<double>(layout_.width);
    return rows > 0 ? std::clamp(shares / rows * width, 1.0, width) : 1;
  }

  /// Of the `reach` rows on either side and each itself.
  static std::vector<double> means(const std::vector<double>& values, std::size_t reach) {
    const std::size_t R = values.size();
    std::vector<double> before(R + 1, 0.0), mean(R);
    for (std::size_t r = 0; r < R; ++r) before[r + 1] = before[r] + values[r];
    for (std::size_t r = 0; r < R; ++r) {
      const std::size_t first = r < reach ? 0 : r - reach, last = std::min(R, r + reach + 1);
      mean[r] = (before[last] - before[first]) / static_cast<double>(last - first);
    }
    return mean;
  }

  std::vector<double> with_floors(std::vector<double> envelope) const {
    std::vector<double> sum(chunk_of_.count, 0.0), rows(chunk_of_.count, 0.0);
    for (std::size_t r = 0; r < envelope.size(); ++r)
      sum[chunk_of_.cell[r]] += envelope[r], rows[chunk_of_.cell[r]] += 1;
    for (std::size_t r = 0; r < envelope.size(); ++r) {
      const double chunk = sum[chunk_of_.cell[r]] / rows[chunk_of_.cell[r]];
      const double step = unit_ * unit_ * truth_[r] / static_cast<double>(layout_.width);
      envelope[r] = std::max({envelope[r], chunk * floor_of_chunk, step * floor_of_storage});
    }
    return envelope;
  }

  const RowLayout& layout_;
  const RowCells& chunk_of_;
  const std::vector<double>& truth_;
  const double unit_;
  std::vector<double> most_, next_;
  std::vector<std::size_t> who_;
};

/// In units of rows and of their envelopes: what an error is multiplied by.
std::vector<float> weights_of(const std::vector<double>& envelope, const Units& units) {
  std::vector<float> weights(envelope.size());
  for (std::size_t r = 0; r < weights.size(); ++r)
    weights[r] = static_cast<float>(1 / std::sqrt(std::max(envelope[r] / units.squares_to_head(r), nothing)));
  return weights;
}

/// `weights`: of energies; `weights_along`: of slopes.
ErrorSums error_sums(const RowLayout& layout, const Tiles& tiles, const std::vector<float>& errors,
                     const std::vector<float>& x, const std::vector<float>& weights,
                     const std::vector<float>& weights_along, double unit) {
  const std::size_t R = layout.rows, stride = padded_width(layout.width);
  ErrorSums sums{std::vector<float>(R), std::vector<float>(R), std::vector<double>(stride, 0.0),
                 std::vector<double>(stride, 0.0), std::vector<double>(tiles.elements.size(), 0.0)};
  constexpr std::size_t rows_of_fp32_sums = 64;
  std::vector<float> columns(stride, 0.0F), columns_along(stride, 0.0F);
  for (std::size_t r = 0; r < R; ++r) {
    const float weight = weights[r], along_weight = weights_along[r] * weights_along[r];
    double row_energy = 0;
    Sixteen row_along;
    for (std::size_t begin = 0; begin < stride; begin += tile_side) {
      const float *const error = &errors[r * stride + begin], *const truth = &x[r * stride + begin];
      float *const column = &columns[begin], *const column_along = &columns_along[begin];
      Sixteen tile;
      for (std::size_t i = 0; i < tile_side; ++i) {
        const float excess = std::max(std::min(error[i] * weight, largest_excess), -largest_excess);
        const float slope = error[i] * truth[i] * along_weight;
        tile.sums[i] = excess * excess;
        column[i] += tile.sums[i], column_along[i] += slope, row_along.sums[i] += slope;
      }
      const double of_tile = tile.total();
      row_energy += of_tile;
      sums.tile_energy[tiles.row_of_tiles[r] * tiles.across + begin / tile_side] += of_tile;
      // An element's own share is at most that of these sixteen.
      if (!(of_tile > sums.element_energy)) continue;
      for (std::size_t i = 0; i < tile_side; ++i) {
        const double rounding = unit * static_cast<double>(truth[i]) * static_cast<double>(weight);
        const double energy = static_cast<double>(tile.sums[i]) / (1 + rounding * rounding);
        if (energy > sums.element_energy) {
          sums.element_energy = energy, sums.element = r * layout.width + begin + i;
          sums.element_share = static_cast<double>(tile.sums[i]);
        }
      }
    }
    sums.row_energy[r] = static_cast<float>(row_energy);
    sums.row_along[r] = static_cast<float>(row_along.total());
    if (r % rows_of_fp32_sums != rows_of_fp32_sums - 1 && r + 1 < R) continue;
    for (std::size_t v = 0; v < stride; ++v) {
      sums.column_energy[v] += static_cast<double>(columns[v]), columns[v] = 0;
      sums.column_along[v] += static_cast<double>(columns_along[v]), columns_along[v] = 0;
    }
  }
  return sums;
}

/// The mean over rows of the share of energy that lies along the truth; at least 1, what independent errors
/// have.
double coherence_of(const std::vector<RowSums>& fields, const std::vector<bool>& fit,
                    const std::vector<double>& truth, const std::vector<double>& envelope) {
  double most = 1;
  for (std::size_t f = 0; f < fit.size(); ++f) {
    if (!fit[f]) continue;
    double sum = 0;
    for (std::size_t r = 0; r < truth.size(); ++r)
      if (truth[r] > 0 && envelope[r] > 0)
        sum += fields[f].along[r] / envelope[r] * (fields[f].along[r] / truth[r]);
    most = std::max(most, sum / static_cast<double>(truth.size()));
  }
  return most;
}

}  // namespace

std::size_t HeadErrors::fit_twins() const { return static_cast<std::size_t>(std::ranges::count(fit, true)); }

HeadErrors head_errors(const TwinSetting& setting, const Tiles& tiles, const RowCells& chunk_of,
                       HeadValues& values) {
  const RowLayout& layout = setting.layout;
  const std::size_t twins = setting.twins;
  const std::size_t R = layout.rows, stride = padded_width(layout.width);
  const Units units(values.truth, R, stride);
  HeadErrors errors;
  errors.exponent = units.of_head();
  std::vector<float> x(values.truth.size());
  std::vector<double> truth_squares(R);
  for (std::size_t r = 0; r < R; ++r) {
    const double unit = units.to_row(r);
    double sum = 0;
    for (std::size_t i = r * stride; i < (r + 1) * stride; ++i) {
      x[i] = static_cast<float>(values.truth[i] * unit);
      sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    truth_squares[r] = sum * units.squares_to_head(r);
    errors.truth_squares += truth_squares[r];
  }
  std::vector<RowSums> rows;
  for (std::vector<float>& field : values.fields)
    rows.push_back(take_errors(field, values.truth, x, units, R, stride));
  for (std::size_t f = 0; f < twins; ++f)
    errors.fit.push_back(rows[f].total <=
                         setting.most_rms_ratio * setting.most_rms_ratio * errors.truth_squares);
  if (errors.fit_twins() < fewest_twins || errors.truth_squares == 0) return errors;

  const Envelope envelope(layout, chunk_of, truth_squares, rows, errors.fit, setting.storage_unit);
  const std::vector<double> of_all = envelope.of_all();
  const std::vector<float> weights = weights_of(of_all, units);
  errors.coherence = coherence_of(rows, errors.fit, truth_squares, of_all);
  errors.row_truth.resize(R), errors.column_truth.assign(stride, 0.0);
  for (std::size_t r = 0; r < R; ++r) {
    const double weight = static_cast<double>(weights[r]) * static_cast<double>(weights[r]);
    double row = 0;
    for (std::size_t v = 0; v < stride; ++v) {
      const auto truth = static_cast<double>(x[r * stride + v]);
      const double share = truth * truth * weight;
      row += share, errors.column_truth[v] += share;
    }
    errors.row_truth[r] = static_cast<float>(row);
  }
  for (std::size_t f = 0; f < values.fields.size(); ++f) {
    if (f < twins && !errors.fit[f]) {
      errors.fields.emplace_back();
      continue;
    }
    const std::vector<float> own = f < twins ? weights_of(envelope.without(f), units) : weights;
    errors.fields.push_back(
        error_sums(layout, tiles, values.fields[f], x, own, weights, setting.storage_unit));
    errors.fields.back().squares = rows[f].total;
  }
  return errors;
}

}  // namespace kda_check::judge
