// Sums of products, of squares for one, whose terms may be beyond the range of a double though their factors
// are not: 1e-200 squared is no zero here, and 1e200 squared no infinity.
//
// The sum is kept as it is while every term lies within [2^-1000, 2^900], which is all that tensors below
// fp64 have, and then has the bits of a plain sum in the same order; otherwise scaled by 2^-1200 or 2^1200,
// that of the largest term (J. Blue, "A portable Fortran program to find the Euclidean norm of a vector", ACM
// TOMS 4, 1978, with one sum in place of three: what lies a level below the largest term is lost in its
// rounding).
#pragma once

#include <cmath>
#include <cstddef>

#include "numeric/strict.hpp"

namespace kda_check::numeric {

class ProductSum {
 public:
  constexpr ProductSum() = default;
  static KDA_CHECK_BOTH_CALLED ProductSum square(double x) {
    ProductSum sum;
    sum.add_square(x);
    return sum;
  }

  /// += a b
  KDA_CHECK_BOTH_CALLED void add(double a, double b) {
    const double term = a * b;
    if (level_ == 0 && is_ordinary(std::fabs(term))) {
      sum_ += term;
    } else {
      add_beyond(a, b);
    }
  }
  KDA_CHECK_BOTH_CALLED void add_square(double x) { add(x, x); }
  KDA_CHECK_BOTH_CALLED void add(const ProductSum& other) {
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
  /// Every term times factor^2.
  KDA_CHECK_BOTH_CALLED void scale(double factor) {
    const double scaled = sum_ * factor * factor;
    if (level_ == 0 && (is_ordinary(std::fabs(scaled)) || !is_finite(factor) || !is_finite(sum_))) {
      sum_ = scaled;
      return;
    }
    int of_sum = 0, of_factor = 0;
    const double sum = std::frexp(sum_, &of_sum), part = std::frexp(factor, &of_factor);
    const int exponent = of_sum + 2 * of_factor + 2 * half_level * level_;
    level_ = exponent < -1000 ? -1 : exponent > 900 ? 1 : 0;
    sum_ = std::ldexp(sum * part * part, exponent - 2 * half_level * level_);
  }

  KDA_CHECK_BOTH_CALLED bool is_zero() const { return sum_ == 0; }
  /// The square root, and that of the mean of so many terms; 0 of none.
  KDA_CHECK_BOTH_CALLED double root() const { return root_mean(1); }
  KDA_CHECK_BOTH_CALLED double root_mean(std::size_t count) const {
    return count == 0 ? 0
                      : std::ldexp(__builtin_sqrt(sum_ / static_cast<double>(count)), half_level * level_);
  }

  /// a / b, and sqrt(a / b), of sums that are not zero. They are in range even where the sums are not.
  friend double quotient(const ProductSum& a, const ProductSum& b);
  friend double root_of_quotient(const ProductSum& a, const ProductSum& b);
  /// sqrt(error / size) of sums of squares, of which any may be zero: no error is 0, one of nothing infinite.
  friend double relative_size(const ProductSum& error, const ProductSum& size);

  /// Whether a term of this size can be added to a plain sum. Between these roots all squares can, and those
  /// of differences of such numbers.
  static constexpr bool is_ordinary(double size) { return size >= 0x1p-1000 && size <= 0x1p900; }
  static constexpr double least_root = 0x1p-440, most_root = 0x1p450;

  // For loops whose terms are known to be 0 or ordinary.
  bool is_plain() const { return level_ == 0; }
  /// The sum itself; null if it is scaled.
  double* plain() { return level_ == 0 ? &sum_ : nullptr; }
  /// Of a plain sum.
  void add_ordinary(double term) { sum_ += term; }

 private:
  static constexpr int half_level = 600;

  /// 2^(600 n), n in [-1, 1]
  static constexpr double power(int n) { return n < 0 ? 0x1p-600 : n > 0 ? 0x1p600 : 1.0; }
  static constexpr bool is_finite(double x) { return x - x == 0; }

  KDA_CHECK_BOTH_CALLED void add_beyond(double a, double b) {
    const double term = a * b;
    if (!is_finite(a) || !is_finite(b)) {
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
  KDA_CHECK_BOTH_CALLED void raise_to(int level) {
    for (; level_ < level; ++level_) sum_ = sum_ * 0x1p-600 * 0x1p-600;
  }

  double sum_ = 0;
  int level_ = 0;  ///< what is meant is sum_ 2^(1200 level_): -1, 0 or 1
};

}  // namespace kda_check::numeric
