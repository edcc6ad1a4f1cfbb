// The L2 norm of docs/kda.md in double-double: y = x / n, n = sqrt(sum of x^2 + 1e-6) over a row.
//
// Exact for every finite row, also where squares are beyond the range of a double. An infinite element is a
// limit: alone it is all there is of its row, y = +-1 and 0 elsewhere; of two nobody knows the ratio (NaN).
#pragma once

#include <cstddef>

#include "numeric/double_double_functions.hpp"

namespace kda_check::kda {

/// A row has elements beyond this: their squares may be beyond the range of a double.
inline constexpr double large_element = 0x1p480;

class RowNorm {
 public:
  KDA_CHECK_BOTH RowNorm() {}
  /// `element(i)` is element i of the row, i < count.
  template <class Element>
  static KDA_CHECK_BOTH RowNorm of(std::size_t count, Element element) {
    constexpr numeric::DoubleDouble epsilon = numeric::DoubleDouble{1.0} / numeric::DoubleDouble{1e6};
    RowNorm norm;
    for (std::size_t i = 0; i < count; ++i) {
      const double size = numeric::absolute(element(i));
      if (size > large_element) norm.scale_ = 0x1p-600;
      norm.infinite_ += size > numeric::detail::largest_double;
    }
    if (norm.infinite_ > 0) return norm;  // 1 / n is 0
    // 1e-6 is nothing beside a large square.
    numeric::DoubleDouble sum = norm.scale_ == 1 ? epsilon : numeric::DoubleDouble{};
    for (std::size_t i = 0; i < count; ++i) {
      const double x = element(i) * norm.scale_;
      sum = sum + numeric::two_product(x, x);
    }
    norm.reciprocal_ = numeric::reciprocal_square_root(sum);
    return norm;
  }
  static KDA_CHECK_BOTH RowNorm of(const double* row, std::size_t count) {
    return of(count, [row](std::size_t i) { return row[i]; });
  }

  /// factor x / n for an element x of the row.
  KDA_CHECK_BOTH numeric::DoubleDouble normalised(numeric::DoubleDouble factor, double x) const {
    if (infinite_ == 0) return factor * reciprocal_ * (x * scale_);
    if (!(numeric::absolute(x) > numeric::detail::largest_double)) return {x * 0.0, 0.0};
    if (infinite_ > 1) return {__builtin_nan(""), 0.0};
    return x > 0 ? factor : -factor;
  }
  /// 1 / n
  KDA_CHECK_BOTH numeric::DoubleDouble reciprocal() const {
    return {reciprocal_.hi * scale_, reciprocal_.lo * scale_};
  }

 private:
  numeric::DoubleDouble reciprocal_;  ///< of the norm of the row times scale_
  double scale_ = 1;                  ///< 1, or so small that no square overflows
  std::size_t infinite_ = 0;          ///< elements
};

}  // namespace kda_check::kda
