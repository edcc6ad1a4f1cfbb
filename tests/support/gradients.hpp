// The truth of gradients, as metrics of tests take it.
#pragma once

#include <vector>

#include "kda/gradient_oracle.hpp"
#include "numeric/double_double.hpp"

namespace kda_check::test {

inline std::vector<numeric::DoubleDouble> values_of(const kda::GradientTruth& truth) {
  std::vector<numeric::DoubleDouble> values(truth.hi.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = {truth.hi[i], truth.lo[i]};
  return values;
}

}  // namespace kda_check::test
