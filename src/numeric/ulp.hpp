// Units in the last place: two different questions, never one word for both.
//   ulp_distance  steps between two numbers of one format (an integer)
//   ulp_error     how far a number is from a wider truth, in units of the truth's last place (real-valued)
// Definitions as in J.-M. Muller et al., Handbook of Floating-Point Arithmetic (2018), section 2.3, with the
// unit kept constant below 2^emin.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "numeric/double_double.hpp"
#include "numeric/formats.hpp"

namespace kda_check::numeric {

/// Position of a stored number on the line of all numbers of its format: consecutive numbers differ by 1,
/// both zeros are 0, the infinities are the ends. Not for NaN. Without branches, as signs are random.
template <class Storage>
KDA_CHECK_INLINE constexpr std::int64_t ordinal_of(std::uint64_t bits) {
  constexpr int sign_position = sizeof(Storage) * 8 - 1;
  const auto sign = -static_cast<std::int64_t>(bits >> sign_position);
  const auto magnitude = static_cast<std::int64_t>(bits & ((std::uint64_t{1} << sign_position) - 1));
  return (magnitude ^ sign) - sign;
}
template <class Storage>
KDA_CHECK_INLINE constexpr std::int64_t ordinal(Storage x) {
  return ordinal_of<Storage>(std::bit_cast<BitsOf<Storage>>(x));
}

/// Representable steps from a to b. Laws: 0 iff equal (+0 and -0 are equal), symmetric, largest finite to
/// infinity is 1, x to -x is twice x to 0. Not for NaN.
KDA_CHECK_INLINE constexpr std::uint64_t distance_between(std::int64_t from, std::int64_t to) {
  const std::uint64_t apart = static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from),
                      sign = -static_cast<std::uint64_t>(to < from);
  return (apart ^ sign) - sign;
}
template <class Storage>
constexpr std::uint64_t ulp_distance(Storage a, Storage b) {
  return distance_between(ordinal(a), ordinal(b));
}

/// floor(log2 |x|) of a finite x, or the smallest exponent of a double for 0.
inline int exponent_of(double x) {
  const auto biased = static_cast<int>((std::bit_cast<std::uint64_t>(x) >> 52) & 0x7ff);
  if (biased != 0) return biased - 1023;
  return x == 0 ? -1074 : std::ilogb(x);
}

/// The same of hi + lo: one less than that of hi when hi is a power of two and lo points towards zero.
inline int exponent_of(DoubleDouble x) {
  const int exponent = exponent_of(x.hi);
  const bool power_of_two = (std::bit_cast<std::uint64_t>(x.hi) & 0x000f'ffff'ffff'ffffu) == 0;
  if (!power_of_two) return exponent;
  const bool toward_zero = (x.hi < 0) ? x.lo > 0 : x.lo < 0;
  return toward_zero ? exponent - 1 : exponent;
}

/// ulp_F = 2^(max(exponent, emin) - p + 1), the unit of a number with that exponent. May be subnormal in
/// fp64.
inline double unit_in_last_place(const Format& format, int exponent) {
  const int unit = (exponent > format.min_exponent ? exponent : format.min_exponent) - format.precision + 1;
  return std::ldexp(1.0, unit);
}

/// |got - exact|: got - exact.hi is computed with its rounding error, so close numbers lose nothing.
inline double distance(double got, DoubleDouble exact) {
  const DoubleDouble difference = two_sum(got, -exact.hi);
  return std::fabs(difference.hi + (difference.lo - exact.lo));
}

/// |got - exact| / ulp_F(exact). A correctly rounded result is <= 0.5. For finite arguments.
inline double ulp_error(const Format& format, double got, DoubleDouble exact) {
  return distance(got, exact) / unit_in_last_place(format, exponent_of(exact));
}

/// |got - exact| / ulp_F(magnitude), the magnitude being the sum of the absolute values of the terms that
/// made exact (hence >= |exact|, which is taken if rounding made it less): immune to cancellation.
inline double scaled_ulp(const Format& format, double got, DoubleDouble exact, double magnitude) {
  const int exponent = exponent_of(magnitude), least = exponent_of(exact);
  return distance(got, exact) / unit_in_last_place(format, exponent > least ? exponent : least);
}

}  // namespace kda_check::numeric
