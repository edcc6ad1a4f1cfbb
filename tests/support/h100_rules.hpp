// The rules of docs/arithmetic.md about an H100's special function units, written out once more, in integers.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "numeric/h100_segments.hpp"

namespace kda_check::test {

inline float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

struct Unit {
  const numeric::h100::Segment* segments;
  int x_bits;           ///< of a fraction, the lowest
  int dropped_columns;  ///< of the square
  int linear_factor;    ///< of C1, which is stored for 17 bits of x
};
inline constexpr Unit ex2_unit{numeric::h100::ex2_segments, 17, 19, 1};
inline constexpr Unit lg2_unit{numeric::h100::lg2_segments, 17, 19, 1};
inline constexpr Unit rsqrt_unit{numeric::h100::rsqrt_segments, 17, 19, 1};
inline constexpr Unit sqrt_unit{numeric::h100::sqrt_segments, 17, 19, 1};
inline constexpr Unit tanh_unit{numeric::h100::tanh_segments, 17, 19, 1};
inline constexpr Unit rcp_unit{numeric::h100::rcp_segments, 16, 17, 2};

/// x^2 from the partial products that a multiplier adds up, without those of the dropped columns.
inline std::int64_t square_of(std::int64_t x, const Unit& unit) {
  std::int64_t sum = 0;
  for (int a = 0; a < unit.x_bits; ++a)
    for (int b = a; b < unit.x_bits; ++b) {
      const int column = a == b ? 2 * a : a + b + 1;
      if (column >= unit.dropped_columns && (x >> a & 1) != 0 && (x >> b & 1) != 0)
        sum += std::int64_t{1} << column;
    }
  return sum >> unit.dropped_columns;
}

/// In units of 2^-40.
inline std::int64_t value_of(const Unit& unit, std::int64_t fraction) {
  const numeric::h100::Segment& segment = unit.segments[fraction >> unit.x_bits];
  const std::int64_t x = fraction & ((std::int64_t{1} << unit.x_bits) - 1);
  return static_cast<std::int64_t>(segment.constant) +
         static_cast<std::int64_t>(segment.linear) * unit.linear_factor * x +
         static_cast<std::int64_t>(segment.square) * square_of(x, unit);
}

/// The first 24 bits of value 2^(exponent - 40), 0 below 2^-126.
inline float first_bits(std::int64_t value, int exponent) {
  while (value >= 1 << 24) value >>= 1, ++exponent;
  const float result = std::ldexp(static_cast<float>(value), exponent - 40);
  return result < 0x1p-126f ? 0.0f : result;
}

/// ex2.approx.ftz.f32.
inline float ruled_ex2_ftz(float x) {
  const std::uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
  const bool negative = bits >> 31 != 0;
  if (magnitude > 0x7f800000u) return from_bits(0x7fffffffu);
  if (magnitude < 0x00800000u) return 1.0f;
  if (magnitude >= 0x43800000u) return negative ? 0.0f : from_bits(0x7f800000u);  // |x| >= 256
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const std::int64_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const std::int64_t a = exponent >= 0    ? significand << exponent
                         : exponent < -40 ? 0
                                          : significand >> -exponent;
  const std::int64_t n = !negative ? a : (a & 0x7fffff) == 0 ? -a : ~a;
  const std::int64_t power = n >> 23;
  if (power >= 128) return from_bits(0x7f800000u);
  return first_bits(value_of(ex2_unit, n & 0x7fffff), static_cast<int>(power));
}

}  // namespace kda_check::test
