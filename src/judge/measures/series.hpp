// Errors token by token: what a comparison keeps when it is asked how the error goes along T.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "numeric/product_sum.hpp"

namespace kda_check::judge {

/// One token of one head. Where got and expected differ in class (finite, infinite, NaN) all errors are
/// infinite; elements where the oracle itself is not finite are left out.
struct TokenErrors {
  numeric::ProductSum difference2{}, expected2{};  ///< sums of squares of got - expected and of expected
  double max_abs = 0, scaled_ulp = 0;              ///< largest of the token; scaled_ulp only with magnitudes
  std::uint32_t abs_lane = 0, ulp_lane = 0;        ///< the first elements of the row that have them
  numeric::ProductSum product{};                   ///< the sum of (got - expected) expected

  void take(double difference, double expected, double ulps, std::size_t lane) {
    difference2.add_square(difference);
    expected2.add_square(expected);
    product.add(difference, expected);
    const double size = std::fabs(difference);
    if (size > max_abs) max_abs = size, abs_lane = static_cast<std::uint32_t>(lane);
    if (ulps > scaled_ulp) scaled_ulp = ulps, ulp_lane = static_cast<std::uint32_t>(lane);
  }
};

struct TokenSeries {
  std::size_t rows = 0, tokens = 0, heads = 0;
  std::vector<TokenErrors> cells;  ///< [row][token][head]; empty when not asked for, or without tokens

  const TokenErrors& at(std::size_t row, std::size_t token, std::size_t head) const {
    return cells[(row * tokens + token) * heads + head];
  }
};

}  // namespace kda_check::judge
