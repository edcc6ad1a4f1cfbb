#include "numeric/product_sum.hpp"

namespace kda_check::numeric {

namespace {

constexpr int half_level = 600;

/// 2^(600 n), n in [-1, 1]
constexpr double power(int n) { return n < 0 ? 0x1p-600 : n > 0 ? 0x1p600 : 1.0; }

/// Of a number mantissa 2^exponent: where its magnitude belongs.
int level_of(int exponent) { return exponent < -1000 ? -1 : exponent > 900 ? 1 : 0; }

}  // namespace

void ProductSum::raise_to(int level) {
  for (; level_ < level; ++level_) sum_ = sum_ * 0x1p-600 * 0x1p-600;
}

void ProductSum::add_beyond(double a, double b) {
  const double term = a * b;
  if (!std::isfinite(a) || !std::isfinite(b)) {
    sum_ += term;
    return;
  }
  if (a == 0 || b == 0) return;
  const double size = std::fabs(term);
  const int level = size < 0x1p-1000 ? -1 : size > 0x1p900 ? 1 : 0;
  if (sum_ == 0) level_ = level;
  raise_to(level);
  sum_ += (a * power(-level_)) * (b * power(-level_));
}

void ProductSum::add(const ProductSum& other) {
  if (other.sum_ == 0) return;
  if (sum_ == 0) {
    *this = other;
    return;
  }
  ProductSum lower = other;
  lower.raise_to(level_);
  raise_to(other.level_);
  sum_ += lower.sum_;
}

void ProductSum::scale(double factor) {
  const double scaled = sum_ * factor * factor;
  if (level_ == 0 && (is_ordinary(std::fabs(scaled)) || !std::isfinite(factor) || !std::isfinite(sum_))) {
    sum_ = scaled;
    return;
  }
  int of_sum = 0, of_factor = 0;
  const double sum = std::frexp(sum_, &of_sum), part = std::frexp(factor, &of_factor);
  const int exponent = of_sum + 2 * of_factor + 2 * half_level * level_;
  level_ = level_of(exponent);
  sum_ = std::ldexp(sum * part * part, exponent - 2 * half_level * level_);
}

double quotient(const ProductSum& a, const ProductSum& b) {
  if (a.level_ == b.level_) return a.sum_ / b.sum_;
  int of_a = 0, of_b = 0;
  const double ratio = std::frexp(a.sum_, &of_a) / std::frexp(b.sum_, &of_b);
  return std::ldexp(ratio, of_a - of_b + 2 * half_level * (a.level_ - b.level_));
}

double root_of_quotient(const ProductSum& a, const ProductSum& b) {
  const double ratio = a.sum_ / b.sum_;
  const int exponent = half_level * (a.level_ - b.level_);
  const double root = std::isnormal(ratio) ? std::sqrt(ratio) : std::sqrt(a.sum_) / std::sqrt(b.sum_);
  return exponent == 0 ? root : std::ldexp(root, exponent);
}

double relative_size(const ProductSum& error, const ProductSum& size) {
  if (error.is_zero()) return 0;
  return size.is_zero() ? HUGE_VAL : root_of_quotient(error, size);
}

}  // namespace kda_check::numeric
