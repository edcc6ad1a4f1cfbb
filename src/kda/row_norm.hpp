// The L2 norm of docs/kda.md in double-double: y = x / n, n = sqrt(sum of x^2 + 1e-6) over a row.
//
// Exact for every finite row, also where squares are beyond the range of a double. An infinite element is a
// limit: alone it is all there is of its row, y = +-1 and 0 elsewhere; of two nobody knows the ratio (NaN).
#pragma once

#include <cstddef>
#include <vector>

#include "numeric/double_double.hpp"

namespace kda_check::kda {

class RowNorm {
 public:
  RowNorm(const double* row, std::size_t count);

  /// factor x / n for an element x of the row.
  numeric::DoubleDouble normalised(numeric::DoubleDouble factor, double x) const;
  /// 1 / n
  numeric::DoubleDouble reciprocal() const { return {reciprocal_.hi * scale_, reciprocal_.lo * scale_}; }

 private:
  numeric::DoubleDouble reciprocal_;  ///< of the norm of the row times scale_
  double scale_ = 1;                  ///< 1, or so small that no square overflows
  std::size_t infinite_ = 0;          ///< elements
};

/// The rows of [count][stride] whose squares are beyond the range of fp64, taken out before a kernel works on
/// all of them and put back as they should be.
class LargeRows {
 public:
  LargeRows(const double* rows, std::size_t count, std::size_t K, std::size_t stride);

  /// Row by row what is put back: `row_of(t, row)` fills the K elements of row t.
  template <class RowOf>
  void keep(RowOf row_of) {
    for (std::size_t i = 0; i < places_.size(); ++i) row_of(places_[i], values_.data() + i * K_);
  }
  void put_into(double* rows) const;

 private:
  std::size_t K_, stride_;
  std::vector<std::size_t> places_;
  std::vector<double> values_;
};

}  // namespace kda_check::kda
