// Gradients and their truth, as tests compare them.
#pragma once

#include <vector>

#include "kda/truth/gradient_oracle.hpp"
#include "numeric/double_double.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace kda_check::test {

inline std::vector<numeric::DoubleDouble> values_of(const kda::GradientTruth& truth) {
  std::vector<numeric::DoubleDouble> values(truth.hi.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = {truth.hi[i], truth.lo[i]};
  return values;
}

/// Elements that differ in their bits, of all gradients.
inline std::size_t differing(const kda::GradientTensors& a, const kda::GradientTensors& b) {
  std::size_t count = 0;
  for (std::size_t g = 0; g < kda::gradient_count; ++g) {
    REQUIRE(a[g].empty() == b[g].empty());
    if (!a[g].empty()) count += differing_bits(a[g], b[g]);
  }
  return count;
}

}  // namespace kda_check::test
