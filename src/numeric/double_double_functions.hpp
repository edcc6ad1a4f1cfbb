// Elementary functions in double-double, branch-free, for V = double or a pack of doubles.
//
// Relative errors, measured against MPFR by tests/numeric: exp < 2^-100 where the result is normal, log1p <
// 2^-102, sigmoid and softplus < 2^-99, reciprocal square root < 2^-102. Far more than the 1e-28 (2^-93) the
// oracle promises.
//
// At infinities each gives the limit of the function, where it has one, else NaN; an infinite result has a
// low part of 0. The operators of double_double.hpp promise neither: a difference of infinities is part of
// every error-free sum.
#pragma once

#include <cstdint>
#include <type_traits>

#include "numeric/double_double.hpp"

namespace kda_check::numeric {

// The operations below are what a pack of doubles also has to offer.

KDA_CHECK_BOTH double round_to_integer(double x) { return (x + 0x1.8p52) - 0x1.8p52; }
/// 2^n for an integer n in [-1022, 1023].
KDA_CHECK_BOTH double power_of_two(double n) {
  return __builtin_bit_cast(double, static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023) << 52);
}
KDA_CHECK_BOTH double select(bool condition, double yes, double no) { return condition ? yes : no; }
KDA_CHECK_BOTH bool all(bool condition) { return condition; }
KDA_CHECK_BOTH double absolute(double x) { return __builtin_fabs(x); }
KDA_CHECK_BOTH double square_root(double x) { return __builtin_sqrt(x); }
template <class V>
KDA_CHECK_BOTH V broadcast_as(double x) {
  if constexpr (std::is_same_v<V, double>) {
    return x;
  } else {
    return V::broadcast(x);
  }
}

template <class Mask, class V>
KDA_CHECK_BOTH BasicDoubleDouble<V> select(const Mask& condition, const BasicDoubleDouble<V>& yes,
                                           const BasicDoubleDouble<V>& no) {
  return {select(condition, yes.hi, no.hi), select(condition, yes.lo, no.lo)};
}

namespace detail {

constexpr DoubleDouble constant(int numerator, int denominator) {
  return DoubleDouble{static_cast<double>(numerator)} / DoubleDouble{static_cast<double>(denominator)};
}

constexpr DoubleDouble inverse_factorial(int n) {
  DoubleDouble value{1.0};
  for (int factor = 2; factor <= n; ++factor) value = value / DoubleDouble{static_cast<double>(factor)};
  return value;
}

template <class V>
KDA_CHECK_BOTH BasicDoubleDouble<V> spread(DoubleDouble x) {
  return {broadcast_as<V>(x.hi), broadcast_as<V>(x.lo)};
}

inline constexpr double largest_double = 0x1.fffffffffffffp+1023;
template <class V>
KDA_CHECK_BOTH auto is_infinite(const V& x) {
  return absolute(x) > broadcast_as<V>(largest_double);
}

/// The low part beside an infinite high part is 0.
template <class V>
KDA_CHECK_BOTH BasicDoubleDouble<V> without_low_part_at_infinity(const BasicDoubleDouble<V>& x) {
  return {x.hi, select(is_infinite(x.hi), broadcast_as<V>(0.0), x.lo)};
}

/// exp(r) - 1 for |r| <= 0.022: Taylor's series, error 2^-110 relative to r. Terms from r^9/9! on are below
/// 2^-62 of the sum, so double precision carries them.
template <class V>
KDA_CHECK_BOTH BasicDoubleDouble<V> exp_minus_one_small(const BasicDoubleDouble<V>& r) {
  constexpr double last_coefficient = inverse_factorial(14).hi;
  V tail = broadcast_as<V>(last_coefficient);
  constexpr double tail_coefficients[] = {inverse_factorial(13).hi, inverse_factorial(12).hi,
                                          inverse_factorial(11).hi, inverse_factorial(10).hi,
                                          inverse_factorial(9).hi};
  for (const double coefficient : tail_coefficients) tail = fma(tail, r.hi, broadcast_as<V>(coefficient));
  constexpr DoubleDouble coefficients[] = {inverse_factorial(8), inverse_factorial(7), inverse_factorial(6),
                                           inverse_factorial(5), inverse_factorial(4), inverse_factorial(3),
                                           inverse_factorial(2)};
  BasicDoubleDouble<V> sum{tail, broadcast_as<V>(0.0)};
  for (const DoubleDouble& coefficient : coefficients) sum = sum * r + spread<V>(coefficient);
  return r + sum * (r * r);
}

}  // namespace detail

/// exp(x) in two parts: significand 2^exponent, the significand between 0.7 and 1.42.
template <class V>
struct ExpParts {
  BasicDoubleDouble<V> significand;
  V exponent;
};

/// x = n ln 2 + 16 r, then four squarings in the form (1 + y)^2 - 1 = 2 y + y^2, which keeps the small part.
/// Beyond +-bound (at most 4000) the parts are those of the bound, so that infinities have some; NaN stays
/// NaN.
template <class V>
KDA_CHECK_BOTH ExpParts<V> exp_parts(BasicDoubleDouble<V> x, double largest) {
  const V bound = broadcast_as<V>(largest);
  x = select(x.hi > bound, BasicDoubleDouble<V>{bound, broadcast_as<V>(0.0)}, x);
  x = select(x.hi < -bound, BasicDoubleDouble<V>{-bound, broadcast_as<V>(0.0)}, x);
  const V multiple = round_to_integer(x.hi * broadcast_as<V>(0x1.71547652b82fep+0));
  const V n =
      select(multiple >= broadcast_as<V>(-6000.0), multiple, broadcast_as<V>(0.0));  // NaN: any number
  // ln 2 in three parts, the first with 40 bits: n times it is exact, and so is the subtraction from x.hi.
  const V reduced = fma(-n, broadcast_as<V>(0x1.62e42fefa2000p-1), x.hi);
  BasicDoubleDouble<V> r = two_sum(reduced, x.lo) - two_product(n, broadcast_as<V>(0x1.9ef35793c7673p-41));
  r = r + (-n * broadcast_as<V>(0x1.f97b57a079a19p-103));
  const V sixteenth = broadcast_as<V>(0.0625);
  BasicDoubleDouble<V> y =
      detail::exp_minus_one_small(BasicDoubleDouble<V>{r.hi * sixteenth, r.lo * sixteenth});
  for (int squaring = 0; squaring < 4; ++squaring) {
    const V two = broadcast_as<V>(2.0);
    y = BasicDoubleDouble<V>{y.hi * two, y.lo * two} + y * y;
  }
  return {y + broadcast_as<V>(1.0), n};
}

/// exp(x). Below -745.2 the result is 0, above 709.8 infinite, NaN stays NaN.
template <class V>
KDA_CHECK_BOTH BasicDoubleDouble<V> exp(const BasicDoubleDouble<V>& x) {
  const ExpParts<V> parts = exp_parts(x, 800.0);
  const V half = round_to_integer(parts.exponent * broadcast_as<V>(0.5));
  const V first = power_of_two(half), second = power_of_two(parts.exponent - half);
  return detail::without_low_part_at_infinity(
      BasicDoubleDouble<V>{parts.significand.hi * first * second, parts.significand.lo * first * second});
}

/// exp(a) as a factor, which need not be within the range of a double: only the product must.
template <class V>
class ExpFactor {
 public:
  KDA_CHECK_BOTH explicit ExpFactor(double a)
      : parts_(exp_parts(detail::spread<V>(DoubleDouble{a}), 3000.0)),
        limit_(broadcast_as<V>(a < -detail::largest_double                                   ? 0.0
                               : a >= -detail::largest_double && a <= detail::largest_double ? 1.0
                                                                                             : a)),
        is_limit_(a < -detail::largest_double || a > detail::largest_double) {}

  /// exp(a) y, relative error 6 u^2 + that of exp where the result is normal. 0 times infinity, which has no
  /// limit, is NaN; exp(800) 0 is 0.
  KDA_CHECK_BOTH BasicDoubleDouble<V> operator*(const BasicDoubleDouble<V>& y) const {
    const V one = broadcast_as<V>(1.0), size = absolute(y.hi);
    const auto is_small = size<broadcast_as<V>(0x1p-500), is_large = size> broadcast_as<V>(0x1p500);
    const V scale =
        select(is_small, broadcast_as<V>(0x1p600), select(is_large, broadcast_as<V>(0x1p-600), one));
    const V shift =
        select(is_small, broadcast_as<V>(-600.0), select(is_large, broadcast_as<V>(600.0), one - one));
    const BasicDoubleDouble<V> product =
        parts_.significand * BasicDoubleDouble<V>{y.hi * scale, y.lo * scale};
    // No more than what is 0 or infinite all the same, in three steps of which none but the last is either.
    const V most = broadcast_as<V>(2200.0);
    V n = parts_.exponent + shift;
    n = select(n > most, most, select(n < -most, -most, n));
    const V third = round_to_integer(n * broadcast_as<V>(1.0 / 3));
    const V first = power_of_two(third), last = power_of_two(n - third - third);
    const BasicDoubleDouble<V> ordinary = {product.hi * first * first * last,
                                           product.lo * first * first * last};
    const BasicDoubleDouble<V> limit{y.hi * limit_, broadcast_as<V>(0.0)};
    const BasicDoubleDouble<V> result = select(detail::is_infinite(y.hi), limit, ordinary);
    return detail::without_low_part_at_infinity(is_limit_ ? limit : result);
  }

 private:
  ExpParts<V> parts_;
  V limit_;  ///< infinity or 0 where a is infinite, NaN where a is, else 1
  bool is_limit_;
};

/// log(1 + x) for 0 <= x <= 1: log c + 2 atanh(s), s = (1 + x - c) / (1 + x + c), c the nearest of
/// 1, 1.25, 1.5, 1.75, 2, so |s| <= 1/17; with c = 1 nothing cancels, and small x keep their relative
/// accuracy.
template <class V>
KDA_CHECK_BOTH BasicDoubleDouble<V> log1p_unit(const BasicDoubleDouble<V>& x) {
  struct Centre {
    double value;
    DoubleDouble logarithm;
  };
  // log c computed with mpmath at 400 bits.
  constexpr Centre centres[] = {{1.25, {0x1.c8ff7c79a9a22p-3, -0x1.4f689f8434012p-57}},
                                {1.5, {0x1.9f323ecbf984cp-2, -0x1.a92e513217f5cp-59}},
                                {1.75, {0x1.1e85f5e7040d0p-1, 0x1.ef62cd2f9f1e3p-56}},
                                {2.0, {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56}}};
  V c = broadcast_as<V>(1.0);
  BasicDoubleDouble<V> logarithm = detail::spread<V>(DoubleDouble{});
  for (const Centre& centre : centres) {
    const auto beyond = x.hi > broadcast_as<V>(centre.value - 1.125);
    c = select(beyond, broadcast_as<V>(centre.value), c);
    logarithm = select(beyond, detail::spread<V>(centre.logarithm), logarithm);
  }
  const V one = broadcast_as<V>(1.0);
  const BasicDoubleDouble<V> s = (x + (one - c)) / (x + (one + c));
  const BasicDoubleDouble<V> square = s * s;
  // |s|^28 / 29 < 2^-119: the series ends at s^27.
  constexpr DoubleDouble coefficients[] = {
      detail::constant(1, 25), detail::constant(1, 23), detail::constant(1, 21), detail::constant(1, 19),
      detail::constant(1, 17), detail::constant(1, 15), detail::constant(1, 13), detail::constant(1, 11),
      detail::constant(1, 9),  detail::constant(1, 7),  detail::constant(1, 5),  detail::constant(1, 3)};
  constexpr DoubleDouble last_coefficient = detail::constant(1, 27);
  BasicDoubleDouble<V> sum = detail::spread<V>(last_coefficient);
  for (const DoubleDouble& coefficient : coefficients) sum = sum * square + detail::spread<V>(coefficient);
  sum = s + s * (square * sum);
  const V two = broadcast_as<V>(2.0);
  return logarithm + BasicDoubleDouble<V>{sum.hi * two, sum.lo * two};
}

template <class V>
KDA_CHECK_BOTH BasicDoubleDouble<V> negative_magnitude(const BasicDoubleDouble<V>& x) {
  return select(x.hi > broadcast_as<V>(0.0), -x, x);
}

/// log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)), without the usual threshold; beyond 800 the second term is
/// 0 in double-double, and the sum x, infinity included.
template <class V>
KDA_CHECK_BOTH BasicDoubleDouble<V> softplus(const BasicDoubleDouble<V>& x) {
  const BasicDoubleDouble<V> zero = detail::spread<V>(DoubleDouble{});
  const BasicDoubleDouble<V> rest = log1p_unit(exp(negative_magnitude(x)));
  const BasicDoubleDouble<V> sum = rest + select(x.hi > broadcast_as<V>(0.0), x, zero);
  return select(x.hi > broadcast_as<V>(800.0), x, sum);
}

/// 1 / (1 + exp(-x)), from exp(-|x|), which cannot overflow.
template <class V>
KDA_CHECK_BOTH BasicDoubleDouble<V> sigmoid(const BasicDoubleDouble<V>& x) {
  const BasicDoubleDouble<V> e = exp(negative_magnitude(x));
  const BasicDoubleDouble<V> one = detail::spread<V>(DoubleDouble{1.0});
  return select(x.hi > broadcast_as<V>(0.0), one, e) / (e + broadcast_as<V>(1.0));
}

/// 1 / sqrt(x), x > 0: one step of Newton from double precision.
template <class V>
KDA_CHECK_BOTH BasicDoubleDouble<V> reciprocal_square_root(const BasicDoubleDouble<V>& x) {
  const V estimate = broadcast_as<V>(1.0) / square_root(x.hi);
  const BasicDoubleDouble<V> residual = -(x * two_product(estimate, estimate)) + broadcast_as<V>(1.0);
  return BasicDoubleDouble<V>{estimate, broadcast_as<V>(0.0)} + residual * (estimate * broadcast_as<V>(0.5));
}

}  // namespace kda_check::numeric
