#include "judge/head_errors.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace kda_check::judge {

namespace {

/// Shares of the envelope that it is at least: of what twins err by in the chunk, of half a step of storage.
constexpr double floor_of_chunk = 1.0 / 256, floor_of_storage = 1.0 / 16;
/// Where rows are narrower, what a twin errs by in one is taken from its neighbours too, and at least a
/// quarter of its own.
constexpr std::size_t fewest_columns = 32;
constexpr double least_of_own = 1.0 / 4;
/// Below everything that is not zero; twins that are exact ask for exactness.
constexpr double nothing = 1e-300;

/// A row's sums, lane by lane: independent sums that the compiler may compute at once.
struct Lanes {
  std::array<double, tile_side> sums{};
  double total() const {
    double sum = 0;
    for (const double lane : sums) sum += lane;
    return sum;
  }
};

/// By row, over the columns: of (y - x)^2 and of (y - x) x.
struct RowSums {
  std::vector<double> squares, along;
};

RowSums row_sums(const double* y, const double* x, std::size_t rows, std::size_t width) {
  RowSums sums{std::vector<double>(rows), std::vector<double>(rows)};
  for (std::size_t r = 0; r < rows; ++r) {
    Lanes squares, along;
    for (std::size_t begin = 0; begin < width; begin += tile_side) {
      const std::size_t count = std::min(tile_side, width - begin);
      const double *const got = y + r * width + begin, *const truth = x + r * width + begin;
      for (std::size_t i = 0; i < count; ++i) {
        const double e = got[i] - truth[i];
        squares.sums[i] += e * e, along.sums[i] += e * truth[i];
      }
    }
    sums.squares[r] = squares.total(), sums.along[r] = along.total();
  }
  return sums;
}

/// What twins err by in each row, squared, the mean over its columns: the most of all of them.
class Envelope {
 public:
  Envelope(const RowLayout& layout, const RowCells& chunk_of, std::vector<double> truth_squares,
           const std::vector<RowSums>& twins, double storage_unit)
      : layout_(layout), chunk_of_(chunk_of), truth_(std::move(truth_squares)), unit_(storage_unit) {
    const std::size_t R = layout.rows;
    most_.assign(R, 0.0), next_.assign(R, 0.0), who_.assign(R, 0);
    for (std::size_t f = 0; f < twins.size(); ++f) {
      const std::vector<double> mean = smoothed(twins[f].squares);
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
  std::vector<double> smoothed(const std::vector<double>& squares) const {
    const std::size_t R = layout_.rows, V = layout_.width;
    const double width = static_cast<double>(V);
    const std::size_t reach = V >= fewest_columns ? 0 : (fewest_columns + V - 1) / V - 1;
    std::vector<double> mean(R), before(R + 1, 0.0);
    for (std::size_t r = 0; r < R; ++r) before[r + 1] = before[r] + squares[r];
    for (std::size_t r = 0; r < R; ++r) {
      if (reach == 0) {
        mean[r] = squares[r] / width;
        continue;
      }
      const std::size_t first = r < reach ? 0 : r - reach, last = std::min(R, r + reach + 1);
      const double neighbours = (before[last] - before[first]) / static_cast<double>(last - first);
      mean[r] = std::max(neighbours, squares[r] * least_of_own) / width;
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
      envelope[r] = std::max({envelope[r], chunk * floor_of_chunk, step * floor_of_storage, nothing});
    }
    return envelope;
  }

  const RowLayout& layout_;
  const RowCells& chunk_of_;
  const std::vector<double> truth_;
  const double unit_;
  std::vector<double> most_, next_;
  std::vector<std::size_t> who_;
};

/// `energy_envelope`: what energies are in units of; `envelope`: what slopes are weighted by.
ErrorSums error_sums(const RowLayout& layout, const Tiles& tiles, const double* y, const double* x,
                     const std::vector<double>& energy_envelope, const std::vector<double>& envelope,
                     double unit) {
  const std::size_t R = layout.rows, V = layout.width;
  ErrorSums sums{std::vector<double>(R), std::vector<double>(R), std::vector<double>(V, 0.0),
                 std::vector<double>(V, 0.0), std::vector<double>(tiles.elements.size(), 0.0)};
  for (std::size_t r = 0; r < R; ++r) {
    const double weight = 1 / energy_envelope[r], weight_along = 1 / envelope[r];
    Lanes row_energy, row_along;
    for (std::size_t begin = 0; begin < V; begin += tile_side) {
      const std::size_t count = std::min(tile_side, V - begin);
      const double *const got = y + r * V + begin, *const truth = x + r * V + begin;
      double *const columns = &sums.column_energy[begin], *const along = &sums.column_along[begin];
      Lanes tile, largest;
      for (std::size_t i = 0; i < count; ++i) {
        const double e = got[i] - truth[i], energy = e * e * weight, slope = e * truth[i] * weight_along;
        tile.sums[i] = energy;
        largest.sums[i] = e * e;
        columns[i] += energy, along[i] += slope;
        row_energy.sums[i] += energy, row_along.sums[i] += slope;
      }
      const double of_tile = tile.total();
      sums.tile_energy[tiles.row_of_tiles[r] * tiles.across + begin / tile_side] += of_tile;
      // An element's own share is at most that of these sixteen.
      if (of_tile <= sums.element_energy) continue;
      for (std::size_t i = 0; i < count; ++i) {
        const double rounding = unit * truth[i];
        const double energy = largest.sums[i] / (energy_envelope[r] + rounding * rounding);
        if (energy > sums.element_energy) {
          sums.element_energy = energy, sums.element = r * V + begin + i;
          sums.element_share = largest.sums[i] * weight;
        }
      }
    }
    sums.row_energy[r] = row_energy.total(), sums.row_along[r] = row_along.total();
  }
  return sums;
}

/// The mean over rows of the share of energy that lies along the truth; at least 1, what independent errors
/// have.
double coherence_of(const std::vector<RowSums>& twins, const std::vector<double>& truth,
                    const std::vector<double>& envelope) {
  double most = 1;
  for (const RowSums& twin : twins) {
    double sum = 0;
    for (std::size_t r = 0; r < truth.size(); ++r)
      if (truth[r] > 0) sum += twin.along[r] * twin.along[r] / (envelope[r] * truth[r]);
    most = std::max(most, sum / static_cast<double>(std::max<std::size_t>(1, truth.size())));
  }
  return most;
}

}  // namespace

HeadErrors head_errors(const RowLayout& layout, const Tiles& tiles, const RowCells& chunk_of,
                       const HeadValues& values, double storage_unit) {
  const std::size_t R = layout.rows, V = layout.width;
  const double* const x = values.truth;
  std::vector<double> truth_squares(R, 0.0);
  for (std::size_t r = 0; r < R; ++r)
    for (std::size_t v = 0; v < V; ++v) truth_squares[r] += x[r * V + v] * x[r * V + v];
  std::vector<RowSums> twin_rows;
  for (const double* const twin : values.twins) twin_rows.push_back(row_sums(twin, x, R, V));
  const Envelope envelope(layout, chunk_of, truth_squares, twin_rows, storage_unit);
  const std::vector<double> of_all = envelope.of_all();

  HeadErrors errors;
  errors.coherence = coherence_of(twin_rows, truth_squares, of_all);
  errors.row_truth.resize(R), errors.column_truth.assign(V, 0.0);
  for (std::size_t r = 0; r < R; ++r) {
    errors.row_truth[r] = truth_squares[r] / of_all[r];
    for (std::size_t v = 0; v < V; ++v) errors.column_truth[v] += x[r * V + v] * x[r * V + v] / of_all[r];
  }
  for (std::size_t f = 0; f < values.twins.size(); ++f)
    errors.twins.push_back(
        error_sums(layout, tiles, values.twins[f], x, envelope.without(f), of_all, storage_unit));
  for (const double* const answer : values.answers)
    errors.answers.push_back(error_sums(layout, tiles, answer, x, of_all, of_all, storage_unit));
  return errors;
}

}  // namespace kda_check::judge
