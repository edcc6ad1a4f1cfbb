// What an H100's approximate functions answer, bit for bit, and what nvcc makes of them (docs/arithmetic.md).
// Written without branches, so that loops over them vectorise; the doubles hold integers and add them up
// without rounding.
#pragma once

#include <cstdint>

#include "numeric/h100_segments.hpp"
#include "numeric/strict.hpp"

namespace kda_check::numeric::h100 {

namespace detail {

inline constexpr std::int32_t fraction_bits = 0x007f'ffff, magnitude_bits = 0x7fff'ffff,
                              infinity_bits = 0x7f80'0000, nan_bits = 0x7fff'ffff, least_normal = 0x0080'0000;

KDA_CHECK_INLINE std::int32_t bits_of(float x) { return __builtin_bit_cast(std::int32_t, x); }
KDA_CHECK_INLINE float from_bits(std::int32_t bits) { return __builtin_bit_cast(float, bits); }

/// x x 2^-19 for the 17 bits x, without the partial products below 2^19: bit a times bit b of a square counts
/// once where a = b, else twice. Above bit 8 only the square of bit 9 is missing, half a unit; of the bits
/// below what counts is their product with the bits from 18 - `low` on.
KDA_CHECK_INLINE std::int32_t truncated_square(std::int32_t x) {
  const std::int32_t high = x >> 9;
  std::int32_t sum = high * high >> 1;
  for (int low = 2; low <= 8; ++low) sum += -(x >> low & 1) & x >> (18 - low);
  return sum;
}

/// In units of 2^-40; `place`: which segment, and 17 bits within it.
KDA_CHECK_INLINE double quadratic(const Segment* segments, std::int32_t place) {
  const Segment& segment = segments[place >> 17];
  const std::int32_t x = place & 0x1'ffff;
  return segment.constant + segment.linear * x + segment.square * truncated_square(x);
}

/// The first 24 bits of a number.
KDA_CHECK_INLINE float truncated(double x) {
  return static_cast<float>(
      __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, x) & ~0x1fff'ffffULL));
}

/// The pattern of truncated(x) 2^(exponent - 40), where that is a normal number; else one below least_normal
/// or from infinity_bits on.
KDA_CHECK_INLINE std::int32_t scaled_bits(double x, std::int32_t exponent) {
  return bits_of(truncated(x)) + (exponent - 40) * least_normal;
}

/// The exponent of a magnitude, halved downwards, and its fraction with the rest of that above it.
KDA_CHECK_INLINE std::int32_t half_exponent(std::int32_t magnitude) { return ((magnitude >> 23) - 127) >> 1; }
KDA_CHECK_INLINE std::int32_t two_octaves(std::int32_t magnitude) {
  return (magnitude & 0x00ff'ffff) ^ least_normal;
}

KDA_CHECK_INLINE bool is_subnormal(float x) { return __builtin_fabsf(x) < 0x1p-126F; }

}  // namespace detail

/// ex2.approx.ftz.f32: 2^x. Bits of x finer than 2^-23 are dropped; a negative x is then taken by one's
/// complement.
KDA_CHECK_INLINE float ex2_ftz(float x) {
  using namespace detail;
  const std::int32_t bits = bits_of(x), negative = bits >> 31;
  const float magnitude = __builtin_fabsf(x);
  const auto a = static_cast<std::int32_t>((magnitude < 128.0F ? magnitude : 128.0F) * 0x1p23F);
  // An integer has no complement but its negative.
  const std::int32_t n = (a ^ negative) - (negative & -static_cast<std::int32_t>((a & fraction_bits) == 0));
  std::int32_t result = scaled_bits(quadratic(ex2_segments, n & fraction_bits), n >> 23);
  result = result < least_normal ? 0 : result;
  result = bits >= bits_of(128.0F) ? infinity_bits : result;
  return from_bits(x != x ? nan_bits : result);
}

/// ex2.approx.f32, and exp2f: gradual underflow.
KDA_CHECK_INLINE float ex2(float x) {
  const bool small = x < -126.0F;
  const float root = ex2_ftz(small ? x * 0.5F : x);
  return small ? root * root : root;
}

/// rcp.approx.ftz.f32: 1 / x.
KDA_CHECK_INLINE float rcp_ftz(float x) {
  using namespace detail;
  const std::int32_t bits = bits_of(x), magnitude = bits & magnitude_bits;
  std::int32_t result =
      scaled_bits(quadratic(rcp_segments, (magnitude & fraction_bits) << 1), 127 - (magnitude >> 23));
  result = result < least_normal ? 0 : result;
  result = magnitude < least_normal ? infinity_bits : result;
  return from_bits(x != x ? nan_bits : result | (bits & ~magnitude_bits));
}

/// rsqrt.approx.ftz.f32: 1 / sqrt(x). The quadratic of a power of 4 would be cut to less than it.
KDA_CHECK_INLINE float rsqrt_ftz(float x) {
  using namespace detail;
  const std::int32_t bits = bits_of(x), magnitude = bits & magnitude_bits, place = two_octaves(magnitude);
  const double value = quadratic(rsqrt_segments, place);
  std::int32_t result = scaled_bits(place == 0 ? 0x1p40 : value, -half_exponent(magnitude));
  result = magnitude == infinity_bits ? 0 : result;
  result = bits < 0 ? nan_bits : result;
  result = magnitude < least_normal ? infinity_bits | (bits & ~magnitude_bits) : result;
  return from_bits(x != x ? nan_bits : result);
}

/// sqrt.approx.ftz.f32.
KDA_CHECK_INLINE float sqrt_ftz(float x) {
  using namespace detail;
  const std::int32_t bits = bits_of(x), magnitude = bits & magnitude_bits;
  std::int32_t result =
      scaled_bits(quadratic(sqrt_segments, two_octaves(magnitude)), half_exponent(magnitude));
  result = magnitude == infinity_bits ? infinity_bits : result;
  result = bits < 0 ? nan_bits : result;
  result = magnitude < least_normal ? bits & ~magnitude_bits : result;
  return from_bits(x != x ? nan_bits : result);
}

/// lg2.approx.ftz.f32: the logarithm to the base 2. What is below 2^-36 is dropped before 24 bits are kept.
KDA_CHECK_INLINE float lg2_ftz(float x) {
  using namespace detail;
  const std::int32_t bits = bits_of(x);
  const double sum = ((bits >> 23) - 127) * 0x1p40 + quadratic(lg2_segments, bits & fraction_bits);
  const double integer = __builtin_fabs(sum) + 0x1p52;  // in its last bits
  const double kept =
      __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, integer) & ~15ULL) - 0x1p52;
  const float magnitude = truncated(kept) * 0x1p-40F;
  float result = x == 1 ? 0.0F : sum < 0 ? -magnitude : magnitude;
  result = bits == infinity_bits ? x : result;
  result = x < 0 ? from_bits(nan_bits) : result;
  result = is_subnormal(x) ? -from_bits(infinity_bits) : result;
  return x != x ? from_bits(nan_bits) : result;
}

/// tanh.approx.f32. The octaves from 2^-8 to 4 have 1 to 16 segments each; in those of few segments x is cut.
KDA_CHECK_INLINE float tanh(float x) {
  using namespace detail;
  constexpr std::int32_t first_segment[11] = {0, 1, 2, 3, 5, 7, 11, 15, 19, 27, 43};
  constexpr std::int32_t dropped_bits[11] = {6, 6, 6, 5, 5, 4, 4, 4, 3, 2, 3};
  const std::int32_t bits = bits_of(x), magnitude = bits & magnitude_bits;
  std::int32_t octave = (magnitude >> 23) - (127 - 8);
  octave = octave < 0 ? 0 : octave > 10 ? 10 : octave;
  const std::int32_t place = (first_segment[octave] << 17) + ((bits & fraction_bits) >> dropped_bits[octave]);
  const float size =
      magnitude >= bits_of(8.0F) ? 1.0F : truncated(quadratic(tanh_segments, place)) * 0x1p-40F;
  const float result = magnitude < bits_of(0x1p-8F) ? x : __builtin_copysignf(size, x);
  return x != x ? from_bits(nan_bits) : result;
}

// Without .ftz a number too small or too large for the unit is scaled on its way in, and the result on its
// way out.

namespace detail {
KDA_CHECK_INLINE float scale_of_divisor(float x) {
  return is_subnormal(x) ? 0x1p24F : __builtin_fabsf(x) > 0x1p126F ? 0.25F : 1.0F;
}
}  // namespace detail

KDA_CHECK_INLINE float rcp(float x) {
  const float scale = detail::scale_of_divisor(x);
  return rcp_ftz(x * scale) * scale;
}
KDA_CHECK_INLINE float rsqrt(float x) {
  const bool small = detail::is_subnormal(x);
  return rsqrt_ftz(small ? x * 0x1p24F : x) * (small ? 0x1p12F : 1.0F);
}
KDA_CHECK_INLINE float sqrt(float x) {
  const bool small = detail::is_subnormal(x);
  return sqrt_ftz(small ? x * 0x1p24F : x) * (small ? 0x1p-12F : 1.0F);
}
KDA_CHECK_INLINE float lg2(float x) {
  const bool small = detail::is_subnormal(x);
  return lg2_ftz(small ? x * 0x1p24F : x) - (small ? 24.0F : 0.0F);
}

/// div.full.f32: a / b.
KDA_CHECK_INLINE float div_full(float a, float b) {
  const float scale = detail::scale_of_divisor(b), result = rcp_ftz(b * scale) * (a * scale);
  return result != result ? detail::from_bits(detail::nan_bits) : result;
}

/// div.full.ftz.f32.
KDA_CHECK_INLINE float div_full_ftz(float a, float b) {
  const auto flushed = [](float x) __attribute__((always_inline)) {
    return detail::is_subnormal(x) ? __builtin_copysignf(0.0F, x) : x;
  };
  const float scale = __builtin_fabsf(b) > 0x1p126F ? 0.25F : 1.0F;
  // Rounded to 24 bits whatever the exponent; what is then below 2^-126 is a zero.
  const double product = static_cast<double>(rcp_ftz(b * scale)) * static_cast<double>(flushed(a) * scale);
  const auto rounded = static_cast<float>(product);
  const bool is_tiny =
      __builtin_fabs(product) < 0x1p-126 && static_cast<float>(__builtin_fabs(product) * 0x1p64) < 0x1p-62F;
  const float result = is_tiny ? __builtin_copysignf(0.0F, rounded) : rounded;
  return result != result ? detail::from_bits(detail::nan_bits) : result;
}

/// logf of CUDA, without fast-math: x = m 2^e with m between 2/3 and 4/3, and a polynomial in m - 1.
KDA_CHECK_INLINE float cuda_logf(float x) {
  using namespace detail;
  const bool small = x < 0x1p-126F;
  const float scaled = small ? x * 0x1p23F : x;
  const std::int32_t bits = bits_of(scaled), exponent = (bits - 0x3f2a'aaab) & ~fraction_bits;
  const float e = __builtin_fmaf(static_cast<float>(exponent), 0x1p-23F, small ? -23.0F : 0.0F);
  const float r = from_bits(bits - exponent) - 1.0F;
  float p = from_bits(static_cast<std::int32_t>(0xbe05'5027));
  constexpr std::uint32_t coefficients[] = {0x3e10'39f6, 0xbdf8'cdcc, 0x3e0f'2955, 0xbe2a'd8b9,
                                            0x3e4c'ed0b, 0xbe7f'ff22, 0x3eaa'aa78, 0xbf00'0000};
  for (const std::uint32_t c : coefficients)
    p = __builtin_fmaf(p, r, from_bits(static_cast<std::int32_t>(c)));
  float result = __builtin_fmaf(e, from_bits(0x3f31'7218), __builtin_fmaf(r * p, r, r));
  result = bits < 0 || bits >= infinity_bits ? from_bits(nan_bits) : result;
  result = bits == infinity_bits ? x : result;
  return x == 0 ? -from_bits(infinity_bits) : result;
}

/// expf of CUDA, without fast-math, is ex2.approx.ftz of an exponent, times a scale.
struct ScaledPower {
  float exponent, scale;
};
KDA_CHECK_INLINE ScaledPower scaled_power(float x) {
  using namespace detail;
  float t = __builtin_fmaf(x, from_bits(0x3bbb'989d), 0.5F);
  t = t > 0 ? (t < 1 ? t : 1.0F) : 0.0F;  // NaN gives 0
  // Rounded towards minus infinity, to an integer between 2^23 and 2^24.
  const auto r = static_cast<float>(static_cast<std::int32_t>(static_cast<double>(t) * 252.0 + 12582913.0));
  const float s = r + -12583039.0F;
  const float f = __builtin_fmaf(x, from_bits(0x3fb8'aa3b), -s);
  return {__builtin_fmaf(x, from_bits(0x32a5'7060), f), from_bits(bits_of(r) << 23)};
}
KDA_CHECK_INLINE float expf(float x) {
  const ScaledPower power = scaled_power(x);
  return ex2_ftz(power.exponent) * power.scale;
}

/// __expf of CUDA, and Triton's tl.exp.
KDA_CHECK_INLINE float fast_expf(float x) { return ex2(x * detail::from_bits(0x3fb8'aa3b)); }

}  // namespace kda_check::numeric::h100
