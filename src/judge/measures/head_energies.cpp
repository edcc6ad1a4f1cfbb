#include "judge/measures/head_energies.hpp"

#include <cmath>

#include "judge/measures/sides.hpp"

namespace kda_check::judge {

void add_finite_squares(numeric::ProductSum& sum, std::span<const double> values) {
  if (sum.is_plain() && sizes_within(values.data(), values.size(), numeric::ProductSum::most_root)) {
    double plain = *sum.plain();  // neighbours share a line of the cache
    for (const double value : values) plain += value * value;
    *sum.plain() = plain;
    return;
  }
  for (const double value : values)
    if (std::isfinite(value)) sum.add_square(value);
}

void HeadEnergies::add(std::size_t begin, std::size_t count, const double* values, int threads) {
  axes_.over_heads(begin, count, threads, [&](std::size_t head, std::size_t at) {
    add_finite_squares(sums_[head], {values + (at - begin), axes_.run});
  });
}

numeric::ProductSum HeadEnergies::total() const {
  numeric::ProductSum total;
  for (const numeric::ProductSum& sum : sums_) total.add(sum);
  return total;
}

}  // namespace kda_check::judge
