#include "numeric/product_sum.hpp"

namespace kda_check::numeric {

double quotient(const ProductSum& a, const ProductSum& b) {
  if (a.level_ == b.level_) return a.sum_ / b.sum_;
  int of_a = 0, of_b = 0;
  const double ratio = std::frexp(a.sum_, &of_a) / std::frexp(b.sum_, &of_b);
  return std::ldexp(ratio, of_a - of_b + 2 * ProductSum::half_level * (a.level_ - b.level_));
}

double root_of_quotient(const ProductSum& a, const ProductSum& b) {
  const double ratio = a.sum_ / b.sum_;
  const int exponent = ProductSum::half_level * (a.level_ - b.level_);
  const double root = std::isnormal(ratio) ? std::sqrt(ratio) : std::sqrt(a.sum_) / std::sqrt(b.sum_);
  return exponent == 0 ? root : std::ldexp(root, exponent);
}

double relative_size(const ProductSum& error, const ProductSum& size) {
  if (error.is_zero()) return 0;
  return size.is_zero() ? HUGE_VAL : root_of_quotient(error, size);
}

}  // namespace kda_check::numeric
