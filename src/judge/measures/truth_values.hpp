// The truth of one tensor, whole, as fine as errors need: half of fp64's memory where errors are those of
// tf32 and coarser, which fp32 follows to an eighth of a thousandth.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "numeric/formats.hpp"

namespace kda_check::judge {

class TruthValues {
 public:
  TruthValues(std::size_t size, bool in_fp64) : wide_(in_fp64 ? size : 0), narrow_(in_fp64 ? 0 : size) {}

  std::size_t size() const { return wide_.size() + narrow_.size(); }
  /// Elements [begin, begin + values.size()).
  void set(std::size_t begin, std::span<const double> values) {
    const auto at = static_cast<std::ptrdiff_t>(begin);
    if (narrow_.empty())
      std::ranges::copy(values, wide_.begin() + at);
    else
      std::ranges::transform(values, narrow_.begin() + at, [](double x) { return static_cast<float>(x); });
  }
  numeric::DType dtype() const { return narrow_.empty() ? numeric::DType::fp64 : numeric::DType::fp32; }
  double operator[](std::size_t i) const {
    return narrow_.empty() ? wide_[i] : static_cast<double>(narrow_[i]);
  }
  /// Calls `use` with a span of all elements, of double or of float.
  template <class Use>
  auto visit(const Use& use) const {
    return narrow_.empty() ? use(std::span<const double>(wide_)) : use(std::span<const float>(narrow_));
  }

 private:
  std::vector<double> wide_;
  std::vector<float> narrow_;
};

}  // namespace kda_check::judge
