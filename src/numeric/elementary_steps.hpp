// The first step of the correctly rounded functions (elementary.hpp), branch-free, for V = double or a pack
// of doubles: a value, rounded, and whether it is surely the right one.
//
// Products and sums are separate but where an exact product is wanted: a fused multiply-add is slow on a
// machine without one, and what it would add to the accuracy is not needed.
//
// Bounds of errors are derived below in units of the result's size, u = 2^-53, and leave room for a factor of
// two; tests/numeric/elementary.cpp measures them against MPFR.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "numeric/double_double_functions.hpp"

namespace kda_check::numeric {

/// high + low: 2^(j / 128), -ln of what 1 / c_i is multiplied with (see log_step).
struct ElementaryTables {
  double power_high[128], power_low[128];
  double reciprocal[128], logarithm_high[128], logarithm_low[128];
};
extern const ElementaryTables elementary_tables;

// What a pack of doubles also has to offer.

/// table[j], j the seven bits of x from `lowest_bit` on.
template <int lowest_bit>
KDA_CHECK_INLINE double table_entry(const double* table, double x) {
  return table[__builtin_bit_cast(std::uint64_t, x) >> lowest_bit & 127];
}
/// The number whose exponent field are the bits of x from `lowest_bit` on.
template <int lowest_bit>
KDA_CHECK_INLINE double power_from_bits(double x) {
  return __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, x) >> lowest_bit << 52);
}
/// The significand of a positive normal number, in [1, 2), and its exponent.
KDA_CHECK_INLINE double significand_of(double x) {
  return __builtin_bit_cast(
      double, (__builtin_bit_cast(std::uint64_t, x) & 0x000f'ffff'ffff'ffffu) | 0x3ff0'0000'0000'0000u);
}
KDA_CHECK_INLINE double binary_exponent_of(double x) {
  const std::uint64_t biased = __builtin_bit_cast(std::uint64_t, x) >> 52;
  return __builtin_bit_cast(double, biased | 0x4330'0000'0000'0000u) - (0x1p52 + 1023.0);
}
KDA_CHECK_INLINE bool both(bool a, bool b) { return a && b; }

template <class V, class Sure>
struct Rounded {
  V value;
  Sure sure;
};

namespace detail {

/// hi + lo rounded, |lo| <= ulp(hi), and whether nothing within `error` of it is rounded to another number.
template <class V>
KDA_CHECK_INLINE auto rounded_surely(const V& hi, const V& lo, const V& error) {
  const BasicDoubleDouble<V> sum = quick_two_sum(hi, lo);
  const V above = sum.hi + (sum.lo + error), below = sum.hi + (sum.lo - error);
  const auto sure = both(above == sum.hi, below == sum.hi);
  return Rounded<V, std::remove_const_t<decltype(sure)>>{sum.hi, sure};
}

/// 2^n (hi + lo), the bits of `shifted` from the seventh on being those of the exponent field of 2^n.
template <class V>
struct PowerTerms {
  V hi, lo, shifted;
};

/// 2^(k / 128) exp(rh + rl), k = 128 n + j in the low bits of `shifted`; |rh| < 2^-8.5, rl below its last
/// place.
///
/// exp(r) = 1 + r + q, q = r^2 / 2 + ... + r^6 / 720, which is below 2^-18: its rounding errors, three of u,
/// come to 2^-69.4, what is left of the series to 2^-71. With 2^(j / 128) = Th + Tl, Th rh is exact in two
/// parts; the sums of what is below 2^-17 then err by 2^-70 each, three times. In all less than 2^-67 for hi
/// in [1, 2].
template <class V>
KDA_CHECK_INLINE PowerTerms<V> power_terms(const V& shifted, const V& rh, const V& rl) {
  V q = broadcast_as<V>(1.0 / 720);
  for (const double coefficient : {1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5})
    q = q * rh + broadcast_as<V>(coefficient);
  q = q * (rh * rh) + (rl * rh + rl);
  const V Th = table_entry<0>(elementary_tables.power_high, shifted),
          Tl = table_entry<0>(elementary_tables.power_low, shifted);
  const BasicDoubleDouble<V> product = two_product(Th, rh), sum = quick_two_sum(Th, product.hi);
  return {sum.hi, sum.lo + (product.lo + Th * q + (Tl * rh + Tl)), shifted};
}
inline constexpr double power_error = 0x1p-66;

template <class V>
KDA_CHECK_INLINE auto rounded_power(const PowerTerms<V>& terms) {
  auto result = rounded_surely(terms.hi, terms.lo, broadcast_as<V>(power_error));
  result.value = result.value * power_from_bits<7>(terms.shifted);
  return result;
}

inline constexpr double exponent_bias = 0x1.8p52 + 128.0 * 1023.0;

/// `low`, which x is rounded from, comes to no more than |x| u; its products with r^2 and beyond, below low
/// 2^-17, are left out.
template <class V>
KDA_CHECK_INLINE PowerTerms<V> exp_terms(const V& x, const V& low) {
  const V shifted = x * broadcast_as<V>(0x1.71547652b82fep+7) + broadcast_as<V>(exponent_bias);
  const V k = shifted - broadcast_as<V>(exponent_bias);
  // ln 2 / 128 in two parts, the first with 36 bits: k < 2^17 times it is exact, and so is the difference.
  // The rest, 2^-101, is 2^-84 times k.
  const V tail = broadcast_as<V>(0x1.cf79abc9e3b3ap-47);
  const V reduced = x - k * broadcast_as<V>(0x1.62e42fefap-8), rest = k * tail;
  const V rh = reduced - rest;
  return power_terms(shifted, rh, ((reduced - rh) - rest) + low);
}
template <class V>
KDA_CHECK_INLINE PowerTerms<V> exp_terms(const V& x) {
  return exp_terms(x, broadcast_as<V>(0.0));
}

template <class V>
KDA_CHECK_INLINE PowerTerms<V> exp2_terms(const V& x) {
  const V shifted = x * broadcast_as<V>(128.0) + broadcast_as<V>(exponent_bias);
  const V k = shifted - broadcast_as<V>(exponent_bias);
  const V d = x - k * broadcast_as<V>(1.0 / 128);  // exact
  const BasicDoubleDouble<V> r = two_product(d, broadcast_as<V>(0x1.62e42fefa39efp-1));
  return power_terms(shifted, r.hi, d * broadcast_as<V>(0x1.abc9e3b39803fp-56) + r.lo);
}

/// A logarithm as high + low, and a bound of its error.
template <class V>
struct LogStep {
  V hi, lo, error;
};

/// ln(uh + ul), uh positive and normal, |ul| below its last place; where uh is 1, any |ul| <= u.
///
/// u = 2^e m. With C near 1 / m, r = m C - 1 is exact in two parts and below 2^-7; then ln u = e ln 2 - ln C
/// + ln(1 + r). C is 1 where m is within 2^-7 above 1, and 1/2 as far below 2: there the constants cancel to
/// nothing, and ln u is as small as r. The constants have high parts of 42 bits whose sum is exact.
///
/// ln(1 + r) = r - r^2 / 2 + r^3 t: r^2 / 2 is exact in two parts, and what is left is below 2^-22, so that
/// its errors and those of the last sums come to 2^-73; relative to a small r they are 2^-51 r^2.
template <class V>
KDA_CHECK_INLINE LogStep<V> log_terms(const V& uh, const V& ul) {
  const V m = significand_of(uh), e = binary_exponent_of(uh);
  const V C = table_entry<45>(elementary_tables.reciprocal, uh);
  const BasicDoubleDouble<V> product = two_product(m, C);
  const V scaled = ul * power_of_two(-e);
  const BasicDoubleDouble<V> main = two_sum(product.hi - broadcast_as<V>(1.0), product.lo);
  const BasicDoubleDouble<V> r0 = two_sum(main.hi, scaled * C);
  const V rh = r0.hi, rl = r0.lo + main.lo;
  V t = broadcast_as<V>(1.0 / 11);
  for (const double coefficient :
       {-1.0 / 10, 1.0 / 9, -1.0 / 8, 1.0 / 7, -1.0 / 6, 1.0 / 5, -1.0 / 4, 1.0 / 3})
    t = t * rh + broadcast_as<V>(coefficient);
  const BasicDoubleDouble<V> square = two_product(rh, rh);
  const V half = broadcast_as<V>(-0.5);
  const V constant = e * broadcast_as<V>(0x1.62e42fefa38p-1) +
                     table_entry<45>(elementary_tables.logarithm_high, uh);  // exact
  const BasicDoubleDouble<V> first = two_sum(constant, rh), second = two_sum(first.hi, square.hi * half);
  const V small =
      (e * broadcast_as<V>(0x1.ef35793c7673p-45) + table_entry<45>(elementary_tables.logarithm_low, uh)) +
      (rl - rh * rl) + square.lo * half;
  const V lo = first.lo + second.lo + (square.hi * rh * t + small);
  const V zero = broadcast_as<V>(0.0);
  const auto is_near_1 = constant == zero;
  const V relative = absolute(rh) * (square.hi * broadcast_as<V>(0x1p-49) + broadcast_as<V>(0x1p-100));
  return {second.hi, lo, select(is_near_1, relative, broadcast_as<V>(0x1p-71))};
}

}  // namespace detail

/// exp(x), |x| <= 708.
template <class V>
KDA_CHECK_INLINE auto exp_step(const V& x) {
  return detail::rounded_power(detail::exp_terms(x));
}

/// 2^x, |x| <= 1021.
template <class V>
KDA_CHECK_INLINE auto exp2_step(const V& x) {
  return detail::rounded_power(detail::exp2_terms(x));
}

/// ln(1 + x), |x| <= 2^900, x > -1.
template <class V>
KDA_CHECK_INLINE auto log1p_step(const V& x) {
  const BasicDoubleDouble<V> u = two_sum(broadcast_as<V>(1.0), x);
  const detail::LogStep<V> step = detail::log_terms(u.hi, u.lo);
  return detail::rounded_surely(step.hi, step.lo, step.error);
}

/// ln x, x positive and normal, not 1.
template <class V>
KDA_CHECK_INLINE auto log_step(const V& x) {
  const detail::LogStep<V> step = detail::log_terms(x, broadcast_as<V>(0.0));
  return detail::rounded_surely(step.hi, step.lo, step.error);
}

}  // namespace kda_check::numeric
