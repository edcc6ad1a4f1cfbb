// Rows whose squares are beyond the range of fp64 (kernels/truth/row_norm.hpp), beside a kernel that knows no
// others.
#pragma once

#include <cstddef>
#include <vector>

namespace kda_check::kda {

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
