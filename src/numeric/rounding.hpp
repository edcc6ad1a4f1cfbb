// Exact widening of a stored element, and rounding to a stored element: once, to nearest, ties to even,
// overflow to infinity, gradual underflow. (std::bit_cast is spelled as the builtin: see KDA_CHECK_INLINE.)
// Also the roundings that kernels apply to operands on their way (cast points).
#pragma once

#include <cstdint>

#include "numeric/double_double.hpp"
#include "numeric/formats.hpp"

namespace kda_check::numeric {

KDA_CHECK_INLINE constexpr float widen_to_float(float x) { return x; }
KDA_CHECK_INLINE constexpr float widen_to_float(Bfloat16 x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
}
/// Exact: the exponent is moved by a multiplication with 2^112, which also normalises subnormals.
KDA_CHECK_INLINE constexpr float widen_to_float(Float16 x) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(x.bits & 0x7fffu) << 13;
  const float finite = __builtin_bit_cast(float, magnitude) * 0x1p112f;
  const std::uint32_t bits =
      magnitude >= 0x0f800000u ? (magnitude | 0x7f800000u) : __builtin_bit_cast(std::uint32_t, finite);
  return __builtin_bit_cast(float, bits | static_cast<std::uint32_t>(x.bits & 0x8000u) << 16);
}

/// The value of a stored element, exactly.
KDA_CHECK_INLINE constexpr double widen(double x) { return x; }
template <class Storage>
KDA_CHECK_INLINE constexpr double widen(Storage x) {
  return static_cast<double>(widen_to_float(x));
}

namespace detail {

/// A double rounded to a format with fewer bits, from its bits alone and without branches.
template <class Storage>
KDA_CHECK_INLINE constexpr std::uint64_t narrow_bits(double x) {
  constexpr const Format& format = format_for<Storage>;
  constexpr int stored_bits = format.precision - 1, lost = 52 - stored_bits;
  constexpr auto power_of_two = [](int exponent) { return static_cast<std::int64_t>(exponent + 1023) << 52; };
  constexpr auto infinity = static_cast<std::int64_t>(format.max_exponent - format.min_exponent + 2)
                            << stored_bits;
  const auto bits = __builtin_bit_cast(std::int64_t, x);
  const std::int64_t magnitude = bits & 0x7fff'ffff'ffff'ffff;
  // A carry out of the significand moves into the exponent field by itself, up to infinity.
  constexpr std::int64_t almost_half = (std::int64_t{1} << (lost - 1)) - 1;
  const std::int64_t rounded = ((magnitude + almost_half + ((magnitude >> lost) & 1)) >> lost) -
                               (static_cast<std::int64_t>(format.min_exponent - 1 + 1023) << stored_bits);
  const std::int64_t normal = rounded > infinity ? infinity : rounded;
  // Below emin the quantum stays that of emin: the last place of the number that is added.
  constexpr std::int64_t coarse = power_of_two(52 + format.min_exponent - stored_bits);
  const std::int64_t subnormal = __builtin_bit_cast(std::int64_t, __builtin_bit_cast(double, magnitude) +
                                                                      __builtin_bit_cast(double, coarse)) -
                                 coarse;
  const std::int64_t number = magnitude < power_of_two(format.min_exponent) ? subnormal : normal;
  constexpr std::int64_t nan = infinity | (std::int64_t{1} << (stored_bits - 1));
  const std::int64_t stored = magnitude > 0x7ff0'0000'0000'0000 ? nan : number;
  const auto sign = static_cast<std::uint64_t>(bits) >> 63;
  return static_cast<std::uint64_t>(stored) | sign << (format.bytes * 8 - 1);
}

}  // namespace detail

/// x rounded once to the storage type.
template <class Storage>
KDA_CHECK_INLINE constexpr Storage round_to(double x) {
  if constexpr (StorageTraits<Storage>::dtype == DType::fp64) {
    return x;
  } else if constexpr (StorageTraits<Storage>::dtype == DType::fp32) {
    return static_cast<float>(x);
  } else {
    return Storage{static_cast<BitsOf<Storage>>(detail::narrow_bits<Storage>(x))};
  }
}

/// hi + lo, |lo| <= ulp(hi)/2, rounded to odd at 53 bits: the result of truncating the exact sum, with the
/// last bit set when anything was cut off. Rounding it again to at most 51 bits equals rounding hi + lo once
/// (S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
/// odd", IEEE TC 57, 2008).
KDA_CHECK_INLINE constexpr double round_to_odd(DoubleDouble x) {
  const std::uint64_t bits = __builtin_bit_cast(std::uint64_t, x.hi);
  const bool exact = !(x.lo < 0) && !(x.lo > 0);
  if (exact || (bits & 0x7ff0'0000'0000'0000u) == 0x7ff0'0000'0000'0000u) return x.hi;
  const bool toward_zero = (x.hi < 0) != (x.lo < 0);
  return __builtin_bit_cast(double, (toward_zero ? bits - 1 : bits) | 1u);
}

/// The double-double rounded once to the storage type.
template <class Storage>
KDA_CHECK_INLINE constexpr Storage round_to(DoubleDouble x) {
  if constexpr (StorageTraits<Storage>::dtype == DType::fp64) {
    return x.hi;
  } else {
    return round_to<Storage>(round_to_odd(x));
  }
}

// Cast points: fp32 values rounded to a narrower format on their way into an operation, and kept as fp32.
// Written without branches, so that loops over them vectorise.

/// To bfloat16, to nearest even.
KDA_CHECK_INLINE constexpr float through_bf16(float x) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  const std::uint32_t nan = (bits | 0x00400000u) & 0xffff0000u;
  return __builtin_bit_cast(float, (bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/// To binary16, to nearest even. Below 2^-14 the quantum is 2^-24, which is also the last place of 0.5:
/// adding 0.5 rounds there. Above, thirteen bits are rounded off; from 65520 on the result is infinite.
KDA_CHECK_INLINE constexpr float through_fp16(float x) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t sign = bits & 0x80000000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const float subnormal = (__builtin_bit_cast(float, magnitude) + 0.5f) - 0.5f;
  const std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u)) & 0xffffe000u;
  std::uint32_t rounded = magnitude < 0x38800000u ? __builtin_bit_cast(std::uint32_t, subnormal) : normal;
  rounded = rounded > 0x477fe000u ? 0x7f800000u : rounded;
  rounded = magnitude > 0x7f800000u ? (magnitude | 0x00400000u) : rounded;
  return __builtin_bit_cast(float, rounded | sign);
}

/// To TF32 (10 stored bits) as the tensor cores of NVIDIA GPUs take fp32 operands: the low 13 bits are
/// dropped (docs/kda.md, "Machine model").
KDA_CHECK_INLINE constexpr float through_tf32(float x) {
  return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, x) & 0xffffe000u);
}

}  // namespace kda_check::numeric
