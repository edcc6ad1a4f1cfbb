#include "judge/head_errors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "judge/envelope.hpp"
#include "kda/kernels/table.hpp"

namespace kda_check::judge {

namespace {

/// Below everything that is not zero; twins that are exact ask for exactness.
constexpr double nothing = 1e-30;
/// Beyond these an error is as large as any: squares and their sums stay numbers in fp32. The first is in
/// units of the largest value of a row, the second in those of the envelope.
constexpr float largest_error = 1e12F, largest_excess = 1e15F;

static_assert(kda::row_lanes == tile_side);

/// Rows are kept in units of a power of two near their largest value, as the values of a head may be
/// hundreds of binary orders apart and squares of fp32 may not; where the truth is zero in those of the head.
class Units {
  static constexpr int farthest = 500;  ///< below the head, so that squares are numbers of fp64

 public:
  Units(const HeadRows& truth, std::size_t rows, std::size_t stride) : exponents_(rows) {
    std::vector<double> largest(rows, 0.0), row(stride);
    double of_all = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      truth.read(r, row.data());
      for (std::size_t v = 0; v < stride; ++v)
        if (const double x = std::fabs(row[v]); x <= std::numeric_limits<double>::max())
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

/// One row of the truth and of the fields, in its unit.
class Row {
 public:
  Row(const HeadValues& values, const Units& units, std::size_t stride)
      : values_(values), units_(units), exact_(stride), moved_(stride), truth_(stride), error_(stride) {}

  void go_to(std::size_t row) {
    row_ = row, unit_ = units_.to_row(row);
    values_.truth.read(row, exact_.data());
    const double unit = unit_;
    for (std::size_t begin = 0; begin < exact_.size(); begin += tile_side) {
      const double* const exact = &exact_[begin];
      float* const truth = &truth_[begin];
      for (std::size_t i = 0; i < tile_side; ++i) truth[i] = static_cast<float>(exact[i] * unit);
    }
  }
  const std::vector<float>& truth() const { return truth_; }
  /// y - x of one field; valid until the next call.
  const std::vector<float>& error(std::size_t field) {
    values_.fields[field].read(row_, error_.data());
    kda::kernel_table().rows.errors({error_.size(), exact_.data(), unit_, largest_error, error_.data()});
    return error_;
  }
  /// False: it is not finite.
  bool read(const Direction& direction, std::vector<float>& to) {
    direction.answer.read(row_, moved_.data());
    const double unit = unit_, per_unit = 1 / direction.step;
    std::uint32_t largest = 0;
    for (std::size_t v = 0; v < to.size(); ++v) {
      const auto change = static_cast<float>((moved_[v] - exact_[v]) * per_unit);
      largest = std::max(largest, std::bit_cast<std::uint32_t>(change) & 0x7fff'ffff);
      to[v] = static_cast<float>(static_cast<double>(change) * unit);
    }
    return largest < 0x7f80'0000;
  }

 private:
  const HeadValues& values_;
  const Units& units_;
  std::size_t row_ = 0;
  double unit_ = 1;
  std::vector<double> exact_, moved_;
  std::vector<float> truth_, error_;
};

double product(const std::vector<float>& a, const std::vector<float>& b) {
  return static_cast<double>(kda::kernel_table().rows.product(a.data(), b.data(), a.size()));
}

/// Adds a row of one field.
void add(RowSums& sums, std::size_t row, const std::vector<float>& error, const std::vector<float>& truth,
         double squares_to_head) {
  sums.squares[row] = product(error, error) * squares_to_head;
  sums.along[row] = product(error, truth) * squares_to_head;
  sums.total += sums.squares[row];
}

/// In units of rows and of their envelopes: what an error is multiplied by.
std::vector<float> weights_of(const std::vector<double>& envelope, const Units& units) {
  std::vector<float> weights(envelope.size());
  for (std::size_t r = 0; r < weights.size(); ++r)
    weights[r] = static_cast<float>(1 / std::sqrt(std::max(envelope[r] / units.squares_to_head(r), nothing)));
  return weights;
}

/// Adds up the errors of one field, row by row.
class FieldSums {
 public:
  /// `weights`: of energies; `weights_along`: of slopes. They and the others must stay.
  FieldSums(const RowLayout& layout, const Tiles& tiles, std::vector<float> weights,
            const std::vector<float>& weights_along, double unit)
      : layout_(layout),
        tiles_(tiles),
        weights_(std::move(weights)),
        weights_along_(weights_along),
        unit_(unit),
        columns_(padded_width(layout.width), 0.0F),
        columns_along_(columns_),
        tiles_of_row_(columns_.size() / tile_side) {
    sums_.row_energy.resize(layout.rows), sums_.row_along.resize(layout.rows);
    sums_.column_energy.assign(columns_.size(), 0.0), sums_.column_along.assign(columns_.size(), 0.0);
    sums_.tile_energy.assign(tiles.elements.size(), 0.0);
  }

  void add(std::size_t r, const std::vector<float>& error, const std::vector<float>& truth) {
    const float weight = weights_[r], along_weight = weights_along_[r] * weights_along_[r];
    kda::RowEnergies row{
        error.size(),    error.data(),          truth.data(),         weight, largest_excess, along_weight,
        columns_.data(), columns_along_.data(), tiles_of_row_.data(), 0};
    kda::kernel_table().rows.energies(row);
    double row_energy = 0;
    double* const tile_energy = &sums_.tile_energy[tiles_.row_of_tiles[r] * tiles_.across];
    for (std::size_t tile = 0; tile < tiles_of_row_.size(); ++tile) {
      const auto of_tile = static_cast<double>(tiles_of_row_[tile]);
      row_energy += of_tile;
      tile_energy[tile] += of_tile;
      // An element's own share is at most that of these sixteen.
      if (of_tile > sums_.element_energy) find_element(r, tile * tile_side, error, truth);
    }
    sums_.row_energy[r] = static_cast<float>(row_energy);
    sums_.row_along[r] = row.along;
    if (r % rows_of_fp32_sums == rows_of_fp32_sums - 1 || r + 1 == layout_.rows) take_columns();
  }
  ErrorSums take(double squares) {
    sums_.squares = squares;
    return std::move(sums_);
  }

 private:
  static constexpr std::size_t rows_of_fp32_sums = 64;

  void find_element(std::size_t row, std::size_t begin, const std::vector<float>& error,
                    const std::vector<float>& truth) {
    const float weight = weights_[row];
    // Most tiles have none, which fp32 can tell with some slack; what is not negative is ordered as its bits.
    constexpr float surely = 1 - 0x1p-18F;
    const auto least = static_cast<float>(sums_.element_energy) * surely,
               unit = static_cast<float>(unit_) * weight;
    bool may_have = !(sums_.element_energy > nothing);
    for (std::size_t i = begin; i < begin + tile_side; ++i) {
      const float excess = error[i] * weight, rounding = truth[i] * unit;
      may_have |= std::bit_cast<std::int32_t>(excess * excess) >=
                  std::bit_cast<std::int32_t>(least * (1 + rounding * rounding));
    }
    if (!may_have) return;
    for (std::size_t i = begin; i < begin + tile_side; ++i) {
      const float excess = std::clamp(error[i] * weight, -largest_excess, largest_excess);
      const auto share = static_cast<double>(excess * excess);
      const double rounding = unit_ * static_cast<double>(truth[i]) * static_cast<double>(weight);
      const double energy = share / (1 + rounding * rounding);
      if (energy > sums_.element_energy) {
        sums_.element_energy = energy, sums_.element = row * layout_.width + i;
        sums_.element_share = share;
      }
    }
  }
  void take_columns() {
    for (std::size_t v = 0; v < columns_.size(); ++v) {
      sums_.column_energy[v] += static_cast<double>(columns_[v]), columns_[v] = 0;
      sums_.column_along[v] += static_cast<double>(columns_along_[v]), columns_along_[v] = 0;
    }
  }

  const RowLayout& layout_;
  const Tiles& tiles_;
  const std::vector<float> weights_;
  const std::vector<float>& weights_along_;
  const double unit_;
  ErrorSums sums_;
  std::vector<float> columns_, columns_along_, tiles_of_row_;
};

/// Adds up the errors of all fields along directions, row by row.
class AlongDirections {
 public:
  AlongDirections(const std::vector<Direction>& directions, std::size_t fields, std::size_t stride)
      : directions_(directions),
        rows_(directions.size(), std::vector<float>(stride)),
        is_finite_(directions.size(), true),
        fields_(fields, std::vector<AlongDirection>(directions.size())) {
    for (const Direction& direction : directions) sums_.push_back({direction.region});
  }

  /// `weight`: of squares.
  void begin(Row& row, double weight) {
    weight_ = weight;
    for (std::size_t n = 0; n < rows_.size(); ++n) {
      if (!row.read(directions_[n], rows_[n])) is_finite_[n] = false;
      sums_[n].squares += product(rows_[n], rows_[n]) * weight;
      sums_[n].truth += product(rows_[n], row.truth()) * weight;
    }
  }
  void add(std::size_t field, const std::vector<float>& error) {
    for (std::size_t n = 0; n < rows_.size(); ++n) {
      const double along = product(rows_[n], error) * weight_;
      fields_[field][n].sum += along, fields_[field][n].squares += along * along;
    }
  }
  void take(HeadErrors& errors) {
    for (std::size_t n = 0; n < sums_.size(); ++n)
      for (std::size_t f = 0; f < errors.fit.size(); ++f)
        if (errors.fit[f] && sums_[n].squares > 0)
          sums_[n].coherence = std::max(sums_[n].coherence, fields_[f][n].squares / sums_[n].squares);
    errors.directions = finite(sums_);
    for (std::size_t f = 0; f < errors.fields.size(); ++f) errors.fields[f].directions = finite(fields_[f]);
  }

 private:
  template <class Sums>
  std::vector<Sums> finite(const std::vector<Sums>& of_directions) const {
    std::vector<Sums> kept;
    for (std::size_t n = 0; n < of_directions.size(); ++n)
      if (is_finite_[n]) kept.push_back(of_directions[n]);
    return kept;
  }

  const std::vector<Direction>& directions_;
  std::vector<std::vector<float>> rows_;  ///< by direction
  std::vector<bool> is_finite_;
  std::vector<std::vector<AlongDirection>> fields_;
  std::vector<DirectionSums> sums_;
  double weight_ = 1;
};

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

bool DirectionSums::is_none() const { return !(squares > 0) || !std::isfinite(squares); }

std::size_t HeadErrors::fit_twins() const { return static_cast<std::size_t>(std::ranges::count(fit, true)); }

std::vector<bool> HeadErrors::fit_at(double most_rms_ratio) const {
  std::vector<bool> are_fit;
  for (const double squares : twin_squares)  // NaN is not
    are_fit.push_back(squares <= most_rms_ratio * most_rms_ratio * truth_squares);
  return are_fit;
}

HeadErrors head_errors(const TwinSetting& setting, const Tiles& tiles, const RowCells& chunk_of,
                       const HeadValues& values) {
  const RowLayout& layout = setting.layout;
  const std::size_t R = layout.rows, stride = padded_width(layout.width), fields = values.fields.size();
  const Units units(values.truth, R, stride);
  Row row(values, units, stride);
  HeadErrors errors;
  errors.exponent = units.of_head();
  std::vector<double> truth_squares(R);
  std::vector<RowSums> rows(fields, RowSums(R));
  for (std::size_t r = 0; r < R; ++r) {
    row.go_to(r);
    double sum = 0;
    for (const float x : row.truth()) sum += static_cast<double>(x) * static_cast<double>(x);
    truth_squares[r] = sum * units.squares_to_head(r);
    errors.truth_squares += truth_squares[r];
    for (std::size_t f = 0; f < fields; ++f)
      add(rows[f], r, row.error(f), row.truth(), units.squares_to_head(r));
  }
  for (std::size_t f = 0; f < setting.twins; ++f) errors.twin_squares.push_back(rows[f].total);
  errors.fit = errors.fit_at(setting.most_rms_ratio);
  if (errors.fit_twins() < fewest_twins || errors.truth_squares == 0) return errors;

  const Envelope envelope(layout, chunk_of, truth_squares, rows, errors.fit,
                          {setting.storage_unit, std::ldexp(setting.least_error, -units.of_head())});
  const std::vector<double> of_all = envelope.of_all();
  const std::vector<float> weights = weights_of(of_all, units);
  errors.coherence = coherence_of(rows, errors.fit, truth_squares, of_all);
  errors.row_truth.resize(R), errors.column_truth.assign(stride, 0.0);
  std::vector<std::optional<FieldSums>> sums(fields);
  for (std::size_t f = 0; f < fields; ++f)
    if (f >= setting.twins || errors.fit[f])
      sums[f].emplace(layout, tiles, f < setting.twins ? weights_of(envelope.without(f), units) : weights,
                      weights, setting.storage_unit);
  AlongDirections directions(values.directions, fields, stride);
  for (std::size_t r = 0; r < R; ++r) {
    row.go_to(r);
    const double weight = static_cast<double>(weights[r]) * static_cast<double>(weights[r]);
    double of_row = 0;
    const float* const truth = row.truth().data();
    double* const of_columns = errors.column_truth.data();
    for (std::size_t v = 0; v < stride; ++v) {
      const double share = static_cast<double>(truth[v]) * static_cast<double>(truth[v]) * weight;
      of_row += share, of_columns[v] += share;
    }
    errors.row_truth[r] = static_cast<float>(of_row);
    directions.begin(row, weight);
    for (std::size_t f = 0; f < fields; ++f) {
      if (!sums[f]) continue;
      const std::vector<float>& error = row.error(f);
      sums[f]->add(r, error, row.truth());
      directions.add(f, error);
    }
  }
  for (std::size_t f = 0; f < fields; ++f)
    errors.fields.push_back(sums[f] ? sums[f]->take(rows[f].total) : ErrorSums());
  directions.take(errors);
  return errors;
}

}  // namespace kda_check::judge
