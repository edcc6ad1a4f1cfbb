// Wall time, and the middle of several measurements.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace kda_check::bench {

using Clock = std::chrono::steady_clock;

template <class Body>
double seconds(Body body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// 0 of none.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace kda_check::bench
