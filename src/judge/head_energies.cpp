#include "judge/head_energies.hpp"

#include <cmath>

namespace kda_check::judge {

void HeadEnergies::add(std::size_t begin, std::size_t count, const double* values, int threads) {
  axes_.over_heads(begin, count, threads, [&](std::size_t head, std::size_t at) {
    numeric::ProductSum sum = sums_[head];  // neighbours share a line of the cache
    for (std::size_t lane = 0; lane < axes_.run; ++lane)
      if (const double value = values[at - begin + lane]; std::isfinite(value)) sum.add_square(value);
    sums_[head] = sum;
  });
}

numeric::ProductSum HeadEnergies::total() const {
  numeric::ProductSum total;
  for (const numeric::ProductSum& sum : sums_) total.add(sum);
  return total;
}

}  // namespace kda_check::judge
