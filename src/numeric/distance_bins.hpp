// Bins for distances on the line of numbers (ulp.hpp): exact below 32, above so many to an octave.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/strict.hpp"

namespace kda_check::numeric {

inline constexpr std::size_t distances_apart = 32, bins_per_octave = 16;
inline constexpr std::size_t distance_bins = distances_apart + 60 * bins_per_octave;

/// x < 2^bits as a double, rounded once: few processors have an instruction for vectors.
template <int bits = 64>
KDA_CHECK_INLINE constexpr double double_of(std::uint64_t x) {
  constexpr double high_one = 0x1p84, low_one = 0x1p52;  // whose last places are 2^32 and 1
  const auto added = [](double one, std::uint64_t places) {
    return __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, one) | places) - one;
  };
  if constexpr (bits <= 52) return added(low_one, x);
  return added(high_one, x >> 32) + added(low_one, x & 0xffff'ffffu);
}

/// Of a distance < 2^bits: its five leading digits, with which a double begins.
template <int bits = 64>
KDA_CHECK_INLINE constexpr std::uint64_t distance_bin(std::uint64_t distance) {
  constexpr std::uint64_t lowest = ((1023 + 5) << 4) - distances_apart;
  std::uint64_t digits = distance;
  if constexpr (bits > 52)  // none that could be rounded up
    digits = distance >> 52 != 0 ? distance & ~std::uint64_t{0xffff'ffff} : distance;
  const std::uint64_t bin = (__builtin_bit_cast(std::uint64_t, double_of<bits>(digits)) >> 48) - lowest;
  return distance >> 5 == 0 ? distance : bin;
}

}  // namespace kda_check::numeric
