// Double-double arithmetic: an unevaluated sum hi + lo with |lo| <= ulp(hi) / 2, about 106 bits.
//
// V is double, or a pack of doubles with the same operators (the kernels' Lanes); every function is
// branch-free, so one definition serves both. u = 2^-53 below. Algorithms and their error bounds: M. Joldes,
// J.-M. Muller, V. Popescu, "Tight and rigorous error bounds for basic building blocks of double-word
// arithmetic", ACM TOMS 44 (2017), whose numbers are given; error-free transforms: T. J. Dekker (1971), D.
// Knuth (TAOCP 2).
#pragma once

#include <cstdint>

#include "numeric/strict.hpp"

namespace kda_check::numeric {

template <class V>
struct BasicDoubleDouble {
  V hi{};
  V lo{};
};
using DoubleDouble = BasicDoubleDouble<double>;

/// a + b exactly, |a| >= |b| or a = 0.
template <class V>
KDA_CHECK_INLINE constexpr BasicDoubleDouble<V> quick_two_sum(V a, V b) {
  const V sum = a + b;
  return {sum, b - (sum - a)};
}

/// a + b exactly.
template <class V>
KDA_CHECK_INLINE constexpr BasicDoubleDouble<V> two_sum(V a, V b) {
  const V sum = a + b;
  const V rounded_b = sum - a;
  return {sum, (a - (sum - rounded_b)) + (b - rounded_b)};
}

namespace detail {

/// a * b + c with one rounding, by sums: for constants, where clang and nvcc have no builtin. The product is
/// split (T. J. Dekker), what is left of the sum is rounded to odd and added last (S. Boldo, G. Melquiond,
/// "Emulation of FMA and correctly rounded sums", IEEE TC 57, 2008). Neither may overflow or underflow.
KDA_CHECK_INLINE constexpr double constant_fma(double a, double b, double c) {
  const auto high_part = [](double x) {
    const double y = x * 0x1.0000002p27;
    return y - (y - x);
  };
  const double product = a * b, a_high = high_part(a), b_high = high_part(b), a_low = a - a_high,
               b_low = b - b_high;
  const double error = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low);
  const DoubleDouble low = two_sum(c, error), sum = two_sum(product, low.hi);
  const DoubleDouble rest = two_sum(low.lo, sum.lo);
  std::uint64_t odd = __builtin_bit_cast(std::uint64_t, rest.hi);
  if (rest.lo != 0 && (odd & 1) == 0) odd = (rest.lo > 0) == (rest.hi > 0) ? odd + 1 : odd - 1;
  return sum.hi + __builtin_bit_cast(double, odd);
}

}  // namespace detail

/// a * b + c with one rounding.
KDA_CHECK_INLINE constexpr double fma(double a, double b, double c) {
#if defined(__clang__) || defined(__CUDACC__)
  if (__builtin_is_constant_evaluated()) return detail::constant_fma(a, b, c);
#endif
  return __builtin_fma(a, b, c);
}

/// a * b exactly.
template <class V>
KDA_CHECK_INLINE constexpr BasicDoubleDouble<V> two_product(V a, V b) {
  const V product = a * b;
  return {product, fma(a, b, -product)};
}

/// Relative error <= 3 u^2 + 13 u^3 (algorithm 6), cancellation included.
template <class V>
KDA_CHECK_INLINE constexpr BasicDoubleDouble<V> operator+(const BasicDoubleDouble<V>& a,
                                                          const BasicDoubleDouble<V>& b) {
  const BasicDoubleDouble<V> high = two_sum(a.hi, b.hi);
  const BasicDoubleDouble<V> low = two_sum(a.lo, b.lo);
  const BasicDoubleDouble<V> middle = quick_two_sum(high.hi, high.lo + low.hi);
  return quick_two_sum(middle.hi, low.lo + middle.lo);
}

/// Relative error <= 2 u^2 (algorithm 4).
template <class V>
KDA_CHECK_INLINE constexpr BasicDoubleDouble<V> operator+(const BasicDoubleDouble<V>& a, V b) {
  const BasicDoubleDouble<V> sum = two_sum(a.hi, b);
  return quick_two_sum(sum.hi, a.lo + sum.lo);
}

template <class V>
KDA_CHECK_INLINE constexpr BasicDoubleDouble<V> operator-(const BasicDoubleDouble<V>& a) {
  return {-a.hi, -a.lo};
}

template <class V>
KDA_CHECK_INLINE constexpr BasicDoubleDouble<V> operator-(const BasicDoubleDouble<V>& a,
                                                          const BasicDoubleDouble<V>& b) {
  return a + (-b);
}

/// The product as an unnormalised pair, relative error <= 5 u^2 (algorithm 12 before its last step): enough
/// where the next step is a two_sum that renormalises.
template <class V>
KDA_CHECK_INLINE constexpr BasicDoubleDouble<V> product_terms(const BasicDoubleDouble<V>& a,
                                                              const BasicDoubleDouble<V>& b) {
  const V product = a.hi * b.hi;
  return {product, fma(a.lo, b.hi, fma(a.hi, b.lo, fma(a.hi, b.hi, -product)))};
}

/// Relative error <= 5 u^2 (algorithm 12, without the product of the low parts).
template <class V>
KDA_CHECK_INLINE constexpr BasicDoubleDouble<V> operator*(const BasicDoubleDouble<V>& a,
                                                          const BasicDoubleDouble<V>& b) {
  const BasicDoubleDouble<V> terms = product_terms(a, b);
  return quick_two_sum(terms.hi, terms.lo);
}

/// Relative error <= 2 u^2 (algorithm 9).
template <class V>
KDA_CHECK_INLINE constexpr BasicDoubleDouble<V> operator*(const BasicDoubleDouble<V>& a, V b) {
  const V product = a.hi * b;
  return quick_two_sum(product, fma(a.lo, b, fma(a.hi, b, -product)));
}

/// Relative error <= 10 u^2 (two correction steps).
template <class V>
KDA_CHECK_INLINE constexpr BasicDoubleDouble<V> operator/(const BasicDoubleDouble<V>& a,
                                                          const BasicDoubleDouble<V>& b) {
  const V first = a.hi / b.hi;
  BasicDoubleDouble<V> rest = a - b * first;
  const V second = rest.hi / b.hi;
  rest = rest - b * second;
  const V third = rest.hi / b.hi;
  return quick_two_sum(first, second) + third;
}

}  // namespace kda_check::numeric
