// What is done to one element of a row of errors, on the CPU and on a GPU (judge/spread/head_errors.hpp).
#pragma once

#include <cstdint>

#include "numeric/strict.hpp"

namespace kda_check::kda {

/// x, or the bound with its sign; NaN stays. Comparisons of numbers would be branches, as they may trap.
KDA_CHECK_BOTH float bounded(float x, float bound) {
  constexpr std::int32_t infinity = 0x7f80'0000;
  const auto bits = __builtin_bit_cast(std::int32_t, x), most = __builtin_bit_cast(std::int32_t, bound);
  const std::int32_t size = bits & 0x7fff'ffff, less = size > most ? most : size;
  return __builtin_bit_cast(float, (bits ^ size) | (size > infinity ? size : less));
}

/// value - exact, in a unit that it is multiplied by.
KDA_CHECK_BOTH float error_of(float value, double exact, double unit, float bound) {
  return bounded(static_cast<float>((static_cast<double>(value) - exact) * unit), bound);
}

/// An error in units of what twins err by, and what it has along the truth.
KDA_CHECK_BOTH float excess_of(float error, float weight, float bound) {
  return bounded(error * weight, bound);
}
KDA_CHECK_BOTH float slope_of(float error, float truth, float weight) { return error * truth * weight; }

/// Of an element whose excess has that square: in units of what twins and storage may err by. `storage_unit`:
/// half a step of the element type at 1.
KDA_CHECK_BOTH double element_energy(double square, float truth, float weight, double storage_unit) {
  const double rounding = storage_unit * static_cast<double>(truth) * static_cast<double>(weight);
  return square / (1 + rounding * rounding);
}

}  // namespace kda_check::kda
