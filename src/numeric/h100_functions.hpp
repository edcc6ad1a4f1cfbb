// The functions of h100.hpp by name, and the inputs on which a device is held to them: functions of an index,
// the same on a CPU and on a GPU.
#pragma once

#include <cstdint>

#include "numeric/random.hpp"
#include "numeric/strict.hpp"

namespace kda_check::numeric::h100 {

enum class Function : unsigned char {
  ex2_ftz,
  ex2,
  exp2f,
  expf,
  fast_expf,
  lg2_ftz,
  lg2,
  rcp_ftz,
  rcp,
  rsqrt_ftz,
  rsqrt,
  sqrt_ftz,
  sqrt,
  tanh,
  div_full_ftz,
  div_full,
};

enum class Inputs : unsigned char {
  patterns,             ///< one number; 2^32 of them are every fp32 number once
  pairs,                ///< any two, and two that are special or whose quotient leaves the range
  quotients_at_bottom,  ///< two whose quotient is a few units of the last place from 2^-126
};

/// A function on so many inputs.
struct FunctionTrial {
  Function function;
  const char* name;
  Inputs inputs;
  std::uint64_t count;
};
inline constexpr std::uint64_t all_patterns = std::uint64_t{1} << 32, many_pairs = std::uint64_t{1} << 30,
                               bottom_pairs = std::uint64_t{1} << 26;
inline constexpr FunctionTrial function_trials[] = {
    {Function::ex2_ftz, "ex2.approx.ftz.f32", Inputs::patterns, all_patterns},
    {Function::ex2, "ex2.approx.f32", Inputs::patterns, all_patterns},
    {Function::exp2f, "exp2f", Inputs::patterns, all_patterns},
    {Function::expf, "expf", Inputs::patterns, all_patterns},
    {Function::fast_expf, "__expf", Inputs::patterns, all_patterns},
    {Function::lg2_ftz, "lg2.approx.ftz.f32", Inputs::patterns, all_patterns},
    {Function::lg2, "lg2.approx.f32", Inputs::patterns, all_patterns},
    {Function::rcp_ftz, "rcp.approx.ftz.f32", Inputs::patterns, all_patterns},
    {Function::rcp, "rcp.approx.f32", Inputs::patterns, all_patterns},
    {Function::rsqrt_ftz, "rsqrt.approx.ftz.f32", Inputs::patterns, all_patterns},
    {Function::rsqrt, "rsqrt.approx.f32", Inputs::patterns, all_patterns},
    {Function::sqrt_ftz, "sqrt.approx.ftz.f32", Inputs::patterns, all_patterns},
    {Function::sqrt, "sqrt.approx.f32", Inputs::patterns, all_patterns},
    {Function::tanh, "tanh.approx.f32", Inputs::patterns, all_patterns},
    {Function::div_full_ftz, "div.full.ftz.f32", Inputs::pairs, many_pairs},
    {Function::div_full_ftz, "div.full.ftz.f32 about 2^-126", Inputs::quotients_at_bottom, bottom_pairs},
    {Function::div_full, "div.full.f32", Inputs::pairs, many_pairs},
    {Function::div_full, "div.full.f32 about 2^-126", Inputs::quotients_at_bottom, bottom_pairs},
};

/// Bit patterns; y is the divisor.
struct Operands {
  std::uint32_t x, y;
};

namespace detail {

inline constexpr std::uint32_t fp32_sign = 0x8000'0000, fp32_unit = 0x0080'0000, fp32_fraction = 0x007f'ffff;

/// Zero, subnormal numbers, the normal ones at the ends of the range and where a divisor begins to be scaled
/// (2^126), 1, infinity, NaN.
KDA_CHECK_BOTH std::uint32_t special_pattern(std::uint32_t number) {
  constexpr std::uint32_t patterns[16] = {
      0x0000'0000, 0x0000'0001, 0x0040'0000, 0x007f'ffff, 0x0080'0000, 0x0080'0001, 0x00ff'ffff, 0x3f7f'ffff,
      0x3f80'0000, 0x3f80'0001, 0x7e80'0000, 0x7e80'0001, 0x7f00'0000, 0x7f7f'ffff, 0x7f80'0000, 0x7fc0'0000};
  return patterns[number & 15] | (number << 27 & fp32_sign);
}

/// With an exponent that is `steps` above that of y, as far as there is one.
KDA_CHECK_BOTH std::uint32_t at_distance(std::uint32_t y, std::int32_t steps, std::uint32_t fraction) {
  const std::int32_t exponent = static_cast<std::int32_t>(y >> 23 & 0xff) + steps;
  const std::uint32_t field = exponent < 0 ? 0 : exponent > 254 ? 254 : static_cast<std::uint32_t>(exponent);
  return (fraction & (fp32_sign | fp32_fraction)) | field << 23;
}

KDA_CHECK_BOTH Operands pair(std::uint64_t index) {
  const std::uint64_t drawn = mixed((index + 1) * weyl), more = mixed(drawn + weyl);
  const auto x = static_cast<std::uint32_t>(drawn), y = static_cast<std::uint32_t>(drawn >> 32),
             extra = static_cast<std::uint32_t>(more >> 32);
  const std::uint32_t special = special_pattern(static_cast<std::uint32_t>(more) >> 8);
  switch (more & 15) {
    case 0:
      return {special, y};
    case 1:
      return {x, special};
    case 2:
      return {special_pattern(extra), special};
    case 3:
    case 4:  // quotients below 2^-126 and below everything
      return {at_distance(y, -125 - static_cast<std::int32_t>(extra % 28), x), y};
    case 5:  // about 2^128
      return {at_distance(y, 126 + static_cast<std::int32_t>(extra % 4), x), y};
    case 6:  // about 1
      return {at_distance(y, static_cast<std::int32_t>(extra % 4) - 2, x), y};
    default:
      return {x, y};
  }
}

/// x = y 2^-126 and up to 16 units of its last place, both normal.
KDA_CHECK_BOTH Operands pair_at_bottom(std::uint64_t index) {
  const std::uint64_t drawn = mixed((index + 1) * weyl);
  const auto low = static_cast<std::uint32_t>(drawn), high = static_cast<std::uint32_t>(drawn >> 32);
  const std::uint32_t y = (128 + high % 126) << 23 | (low & fp32_fraction);
  return {(y - 126 * fp32_unit + (high >> 8 & 31) - 16) | (low & fp32_sign), y | (high & fp32_sign)};
}

}  // namespace detail

/// Input number `index`. Patterns come in an order in which those of any beginning are spread evenly.
KDA_CHECK_BOTH Operands operands_of(Inputs inputs, std::uint64_t index) {
  switch (inputs) {
    case Inputs::pairs:
      return detail::pair(index);
    case Inputs::quotients_at_bottom:
      return detail::pair_at_bottom(index);
    case Inputs::patterns:
      break;
  }
  return {static_cast<std::uint32_t>(index) * 2654435769u, 0};
}

}  // namespace kda_check::numeric::h100
