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

namespace kda_check::numeric {

class ProductSum {
 public:
  constexpr ProductSum() = default;
  static ProductSum square(double x) {
    ProductSum sum;
    sum.add_square(x);
    return sum;
  }

  /// += a b
  void add(double a, double b) {
    const double term = a * b;
    if (level_ == 0 && is_ordinary(std::fabs(term))) {
      sum_ += term;
    } else {
      add_beyond(a, b);
    }
  }
  void add_square(double x) { add(x, x); }
  void add(const ProductSum& other);
  /// Every term times factor^2.
  void scale(double factor);

  bool is_zero() const { return sum_ == 0; }
  /// The square root, and that of the mean of so many terms; 0 of none.
  double root() const { return root_mean(1); }
  double root_mean(std::size_t count) const {
    return count == 0 ? 0 : std::ldexp(std::sqrt(sum_ / static_cast<double>(count)), 600 * level_);
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
  void add_beyond(double a, double b);
  void raise_to(int level);

  double sum_ = 0;
  int level_ = 0;  ///< what is meant is sum_ 2^(1200 level_): -1, 0 or 1
};

}  // namespace kda_check::numeric
