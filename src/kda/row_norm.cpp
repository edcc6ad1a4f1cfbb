#include "kda/row_norm.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numeric/double_double_functions.hpp"

namespace kda_check::kda {

using numeric::DoubleDouble;

namespace {

constexpr DoubleDouble norm_epsilon = DoubleDouble{1.0} / DoubleDouble{1e6};
constexpr double large = 0x1p480, scale_of_large = 0x1p-600;

bool is_large(const double* row, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (std::fabs(row[i]) > large) return true;
  return false;
}

}  // namespace

RowNorm::RowNorm(const double* row, std::size_t count) {
  if (is_large(row, count)) scale_ = scale_of_large;
  for (std::size_t i = 0; i < count; ++i) infinite_ += std::isinf(row[i]);
  if (infinite_ > 0) return;                                       // 1 / n is 0
  DoubleDouble sum = scale_ == 1 ? norm_epsilon : DoubleDouble{};  // 1e-6 is nothing beside a large square
  for (std::size_t i = 0; i < count; ++i) sum = sum + numeric::two_product(row[i] * scale_, row[i] * scale_);
  reciprocal_ = numeric::reciprocal_square_root(sum);
}

DoubleDouble RowNorm::normalised(DoubleDouble factor, double x) const {
  if (infinite_ == 0) return factor * reciprocal_ * (x * scale_);
  if (!std::isinf(x)) return {x * 0.0, 0.0};
  if (infinite_ > 1) return {std::numeric_limits<double>::quiet_NaN(), 0.0};
  return x > 0 ? factor : -factor;
}

LargeRows::LargeRows(const double* rows, std::size_t count, std::size_t K, std::size_t stride)
    : K_(K), stride_(stride) {
  for (std::size_t t = 0; t < count; ++t)
    if (is_large(rows + t * stride, K)) places_.push_back(t);
  values_.resize(places_.size() * K);
}

void LargeRows::put_into(double* rows) const {
  for (std::size_t i = 0; i < places_.size(); ++i)
    std::copy_n(values_.data() + i * K_, K_, rows + places_[i] * stride_);
}

}  // namespace kda_check::kda
