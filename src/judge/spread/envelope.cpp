#include "judge/spread/envelope.hpp"

#include <algorithm>
#include <cmath>

namespace kda_check::judge {

namespace {

/// Of what twins err by in the chunk, how much the envelope is at least.
constexpr double floor_of_chunk = 1.0 / 256;
/// Where a row has fewer independent errors, what a twin errs by in it is taken from its neighbours too, and
/// at least a quarter of its own.
constexpr double fewest_of_a_row = 32;
constexpr double least_of_own = 1.0 / 4;

/// Sums of the first 0, 1, 2 ... rows.
std::vector<double> sums_before(const std::vector<double>& values) {
  std::vector<double> before(values.size() + 1, 0.0);
  for (std::size_t r = 0; r < values.size(); ++r) before[r + 1] = before[r] + values[r];
  return before;
}

/// The rows [first, last) that a row is seen among: itself, and as many on either side as make up enough
/// errors with it on one.
struct Neighbours {
  std::size_t first, last;

  bool are_one() const { return last - first == 1; }
  double sum(const std::vector<double>& before) const { return before[last] - before[first]; }
  double mean(const std::vector<double>& before) const {
    return sum(before) / static_cast<double>(last - first);
  }
};

/// `columns`: sums_before of what counts in each row, `wanted` of them make up enough errors.
std::vector<Neighbours> neighbours(const std::vector<double>& columns, double wanted) {
  const std::size_t R = columns.size() - 1;
  std::vector<Neighbours> list;
  for (std::size_t r = 0; r < R; ++r) {
    std::size_t reach = 0;
    const auto first = [&] { return r < reach ? 0 : r - reach; };
    const auto last = [&] { return std::min(R, r + reach + 1); };
    while (std::max(columns[r + 1] - columns[first()], columns[last()] - columns[r]) < wanted &&
           (first() > 0 || last() < R))
      ++reach;
    list.push_back({first(), last()});
  }
  return list;
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

/// Means over the columns. A row of few independent errors - narrow, of a triangle's tip, or all along the
/// truth - may be right by luck: what it is given is that of its neighbours too, by size or in relation to
/// the truth.
std::vector<double> Envelope::smoothed(const RowSums& sums) const {
  const std::size_t R = layout_.rows;
  std::vector<double> relative(R, 0.0), counted(R);
  for (std::size_t r = 0; r < R; ++r) {
    counted[r] = columns(r);
    if (truth_[r] > 0) relative[r] = sums.squares[r] / truth_[r];
  }
  const std::vector<double> squares = sums_before(sums.squares), relatives = sums_before(relative),
                            elements = sums_before(counted);
  const std::vector<Neighbours> narrow = neighbours(elements, fewest_of_a_row),
                                coherent = neighbours(elements, fewest_of_a_row * coherence(sums));
  std::vector<double> mean(R);
  for (std::size_t r = 0; r < R; ++r) {
    mean[r] = sums.squares[r] / columns(r);
    if (narrow[r].are_one() && coherent[r].are_one()) continue;
    const double by_size = narrow[r].are_one() ? 0 : narrow[r].sum(squares) / narrow[r].sum(elements),
                 by_truth = coherent[r].are_one() ? 0 : coherent[r].mean(relatives) * truth_[r] / columns(r);
    mean[r] = std::max({by_size, by_truth, mean[r] * least_of_own});
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
  const std::vector<double> noise =
      floors_.noise == nullptr ? std::vector<double>(envelope.size()) : smoothed(*floors_.noise);
  for (std::size_t r = 0; r < envelope.size(); ++r) {
    const double chunk = sum[chunk_of_.cell[r]] / rows[chunk_of_.cell[r]];
    const double truth = truth_[r] / columns(r);
    // Where a computation happens to be exact another may round an operand.
    const bool has_noise =
        floors_.noise != nullptr && noise[r] > floors_.exact_below * floors_.exact_below * truth;
    const double step = has_noise ? 0 : floors_.of_truth * floors_.of_truth * truth;
    envelope[r] = std::max({envelope[r], chunk * floor_of_chunk, step, noise[r] * floors_.share_of_noise,
                            floors_.least_error * floors_.least_error});
  }
  return envelope;
}

}  // namespace kda_check::judge
