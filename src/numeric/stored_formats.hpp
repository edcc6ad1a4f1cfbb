// The formats that a carried state is stored in, and one number on its way there: on a grid, to nearest or by
// lot (docs/arithmetic.md, "stored").
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "numeric/strict.hpp"

namespace kda_check::numeric {

/// Numbers n 2^(e - p + 1), |n| <= 2^p, e at least `min_exponent`, up to `largest`. An integer format is one
/// whose numbers are all below 2^(min_exponent + 1): their step is 1.
struct StoredFormat {
  std::string_view name;
  int bits;
  int precision;
  int min_exponent;
  double largest;
  bool saturates;  ///< beyond it: the largest number, else infinity
};
/// e4m3 is OCP's (Open Compute Project, "8-bit Floating Point Specification", 2023), without infinities.
inline constexpr std::array stored_formats{
    StoredFormat{"fp32", 32, 24, -126, 0x1.fffffep127, false},
    StoredFormat{"bf16", 16, 8, -126, 0x1.fep127, false},
    StoredFormat{"fp16", 16, 11, -14, 0x1.ffcp15, false},
    StoredFormat{"e4m3", 8, 4, -6, 448, true},
    StoredFormat{"int8", 8, 8, 7, 127, true},
};

/// A magnitude, a number of fp32, as a number of the format. `draw` in [0, 1): it is rounded up where the
/// part of a step that is left over is larger than that; without one to nearest, ties to even. Without
/// branches.
template <bool by_lot>
KDA_CHECK_INLINE constexpr double on_grid(const StoredFormat& format, double magnitude, double draw) {
  const auto field = static_cast<std::int64_t>(__builtin_bit_cast(std::uint64_t, magnitude) >> 52);
  const std::int64_t least = format.min_exponent + 1023;
  const std::int64_t step_field = (field > least ? field : least) - (format.precision - 1);
  const double step = __builtin_bit_cast(double, step_field << 52);
  const double steps = magnitude * __builtin_bit_cast(double, (2046 - step_field) << 52);
  double count = (steps + 0x1p52) - 0x1p52;
  if constexpr (by_lot) {
    count = count > steps ? count - 1 : count;
    count = steps - count > draw ? count + 1 : count;
  }
  const double number = count * step;
  return number > format.largest ? (format.saturates ? format.largest : __builtin_inf()) : number;
}

}  // namespace kda_check::numeric
