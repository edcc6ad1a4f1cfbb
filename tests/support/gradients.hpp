// Gradients and their truth, as tests compare them.
#pragma once

#include <cmath>
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

inline double rms_ratio(const tensor::Tensor& got, const kda::GradientTruth& truth) {
  return rms_ratio(got, values_of(truth));
}

/// rms_ratio of every gradient that is there is at most that, and so many are at least.
inline void check_near(const kda::GradientTensors& got, const kda::GradientTruths& truths, double limit,
                       std::size_t least = 5) {
  std::size_t compared = 0;
  for (std::size_t g = 0; g < kda::gradient_count; ++g) {
    if (got[g].empty()) continue;
    INFO(got[g].name());
    CHECK(rms_ratio(got[g], truths[g]) <= limit);
    ++compared;
  }
  CHECK(compared >= least);
}

inline kda::GradientTruths gradient_truths(
    const kda::Problem& problem, std::size_t chunk_size = 64,
    kda::OraclePrecision precision = kda::OraclePrecision::double_double, int threads = 2) {
  return kda::run_gradient_oracle(problem, precision, chunk_size, threads);
}

inline bool is_finite(const kda::GradientTensors& gradients) {
  for (const tensor::Tensor& tensor : gradients)
    for (std::size_t i = 0; i < tensor.size(); ++i)
      if (!std::isfinite(tensor.value(i))) return false;
  return true;
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
