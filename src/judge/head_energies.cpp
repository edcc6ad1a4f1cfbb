#include "judge/head_energies.hpp"

#include <cmath>

namespace kda_check::judge {

void HeadEnergies::add(std::size_t begin, std::size_t count, const double* values) {
  for (std::size_t i = 0; i < count; i += axes_.run) {
    numeric::ProductSum& sum = sums_[axes_.head(begin + i)];
    for (std::size_t lane = 0; lane < axes_.run; ++lane)
      if (const double value = values[i + lane]; std::isfinite(value)) sum.add_square(value);
  }
}

numeric::ProductSum HeadEnergies::total() const {
  numeric::ProductSum total;
  for (const numeric::ProductSum& sum : sums_) total.add(sum);
  return total;
}

}  // namespace kda_check::judge
