#include "judge/envelope.hpp"

#include <algorithm>
#include <cmath>

namespace kda_check::judge {

namespace {

/// Shares of the envelope that it is at least: of what twins err by in the chunk, of half a step of storage.
constexpr double floor_of_chunk = 1.0 / 256, floor_of_storage = 1.0 / 16;
/// Where a row has fewer independent errors, what a twin errs by in it is taken from its neighbours too, and
/// at least a quarter of its own.
constexpr double fewest_errors = 32;
constexpr double least_of_own = 1.0 / 4;

/// Rows on either side that make up enough errors.
std::size_t reach_for(double independent) {
  return independent >= fewest_errors ? 0
                                      : static_cast<std::size_t>(std::ceil(fewest_errors / independent)) - 1;
}

/// Of the `reach` rows on either side and each itself.
std::vector<double> means(const std::vector<double>& values, std::size_t reach) {
  const std::size_t R = values.size();
  std::vector<double> before(R + 1, 0.0), mean(R);
  for (std::size_t r = 0; r < R; ++r) before[r + 1] = before[r] + values[r];
  for (std::size_t r = 0; r < R; ++r) {
    const std::size_t first = r < reach ? 0 : r - reach, last = std::min(R, r + reach + 1);
    mean[r] = (before[last] - before[first]) / static_cast<double>(last - first);
  }
  return mean;
}

}  // namespace

Envelope::Envelope(const RowLayout& layout, const RowCells& chunk_of,
                   const std::vector<double>& truth_squares, const std::vector<RowSums>& fields,
                   const std::vector<bool>& fit, const Floors& floors)
    : layout_(layout), chunk_of_(chunk_of), truth_(truth_squares), floors_(floors) {
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

std::vector<double> Envelope::without(std::size_t twin) const {
  std::vector<double> others(layout_.rows);
  for (std::size_t r = 0; r < others.size(); ++r) others[r] = who_[r] == twin ? next_[r] : most_[r];
  return with_floors(std::move(others));
}

/// Means over the columns. A row of few independent errors - narrow, or all along the truth - may be
/// right by luck: what it is given is that of its neighbours too, by size or in relation to the truth.
std::vector<double> Envelope::smoothed(const RowSums& sums) const {
  const std::size_t R = layout_.rows;
  const double width = static_cast<double>(layout_.width);
  const std::size_t narrow = reach_for(width), coherent = reach_for(width / coherence(sums));
  std::vector<double> relative(R, 0.0);
  for (std::size_t r = 0; r < R; ++r)
    if (truth_[r] > 0) relative[r] = sums.squares[r] / truth_[r];
  const std::vector<double> by_size = means(sums.squares, narrow), by_truth = means(relative, coherent);
  std::vector<double> mean(R);
  for (std::size_t r = 0; r < R; ++r) {
    if (narrow == 0 && coherent == 0)
      mean[r] = sums.squares[r] / columns(r);
    else
      mean[r] = std::max({narrow > 0 ? by_size[r] : 0, coherent > 0 ? by_truth[r] * truth_[r] : 0,
                          sums.squares[r] * least_of_own}) /
                columns(r);
  }
  return mean;
}

/// Of one twin: the mean share of a row's energy along the truth, in units of what independent errors have.
double Envelope::coherence(const RowSums& sums) const {
  double shares = 0, rows = 0;
  for (std::size_t r = 0; r < layout_.rows; ++r)
    if (sums.squares[r] > 0 && truth_[r] > 0)
      shares += sums.along[r] / sums.squares[r] * (sums.along[r] / truth_[r]) * columns(r), rows += 1;
  return rows > 0 ? std::clamp(shares / rows, 1.0, static_cast<double>(layout_.width)) : 1;
}

std::vector<double> Envelope::with_floors(std::vector<double> envelope) const {
  std::vector<double> sum(chunk_of_.count, 0.0), rows(chunk_of_.count, 0.0);
  for (std::size_t r = 0; r < envelope.size(); ++r)
    sum[chunk_of_.cell[r]] += envelope[r], rows[chunk_of_.cell[r]] += 1;
  for (std::size_t r = 0; r < envelope.size(); ++r) {
    const double chunk = sum[chunk_of_.cell[r]] / rows[chunk_of_.cell[r]];
    const double step = floors_.storage_unit * floors_.storage_unit * truth_[r] / columns(r);
    envelope[r] = std::max({envelope[r], chunk * floor_of_chunk, step * floor_of_storage,
                            floors_.least_error * floors_.least_error});
  }
  return envelope;
}

}  // namespace kda_check::judge
