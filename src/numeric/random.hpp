// Random numbers that are a function of (seed, stream, counter): element i is the same whatever else was
// drawn, in any order and on any machine.
// splitmix64's finaliser (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators",
// OOPSLA 2014), once for each of the three words.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "numeric/elementary.hpp"

namespace kda_check::numeric {

inline constexpr std::uint64_t weyl = 0x9e37'79b9'7f4a'7c15u;

/// The finaliser: a bijection in which every bit of x reaches every bit of the result.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58'476d'1ce4'e5b9u;
  x = (x ^ (x >> 27)) * 0x94d0'49bb'1331'11ebu;
  return x ^ (x >> 31);
}

class Random {
 public:
  constexpr Random(std::uint64_t seed, std::uint64_t stream) : key_(mixed(mixed(seed + weyl) + stream)) {}

  constexpr std::uint64_t bits(std::uint64_t counter) const { return mixed(key_ + counter * weyl); }

  /// In [0, 1), a multiple of 2^-53.
  constexpr double uniform(std::uint64_t counter) const {
    return static_cast<double>(bits(counter) >> 11) * 0x1p-53;
  }
  constexpr double uniform(std::uint64_t counter, double from, double to) const {
    return from + (to - from) * uniform(counter);
  }

  /// Mean 0, variance 1 (G. Box, M. Muller 1958); uses the uniforms 2 counter and 2 counter + 1.
  double normal(std::uint64_t counter) const {
    const double radius = std::sqrt(-2 * log(1 - uniform(2 * counter)));
    return radius * cosine(2 * std::numbers::pi * uniform(2 * counter + 1));
  }

  /// In [0, count); count is far below 2^32, so that the remainder favours nobody measurably.
  constexpr std::uint64_t below(std::uint64_t counter, std::uint64_t count) const {
    return bits(counter) % count;
  }

 private:
  std::uint64_t key_;
};

}  // namespace kda_check::numeric
