// Rows whose squares are beyond the range of fp64 (kernels/truth/row_norm.hpp), beside a kernel that knows no
// others.
#pragma once

#include <cmath>
#include <cstddef>

#include "kda/kernels/truth/row_norm.hpp"

namespace kda_check::kda {

/// Of [count][stride] rows: large(t) for each whose squares are beyond the range, and ordinary(first, count)
/// for those between them.
template <class Ordinary, class Large>
void by_size(const double* rows, std::size_t count, std::size_t K, std::size_t stride, Ordinary ordinary,
             Large large) {
  const auto is_large = [&](std::size_t t) {
    for (std::size_t k = 0; k < K; ++k)
      if (std::fabs(rows[t * stride + k]) > large_element) return true;
    return false;
  };
  std::size_t first = 0;
  for (std::size_t t = 0; t <= count; ++t) {
    if (t < count && !is_large(t)) continue;
    if (t > first) ordinary(first, t - first);
    if (t < count) large(t);
    first = t + 1;
  }
}

}  // namespace kda_check::kda
