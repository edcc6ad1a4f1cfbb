// Philox4x32-10, whose numbers are a function of a counter and a key (J. Salmon, M. Moraes, R. Dror, D. Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace kda_check::numeric {

constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xd251'1f53} * counter[0],
                        b = std::uint64_t{0xcd9e'8d57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9e37'79b9, key[1] + 0xbb67'ae85};
  }
  return counter;
}

/// As Triton's randint(seed, offset): the first word of what is drawn for (offset, 0).
constexpr std::uint32_t philox(std::uint64_t seed, std::uint64_t offset) {
  return philox({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32), 0, 0},
                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)})[0];
}

}  // namespace kda_check::numeric
