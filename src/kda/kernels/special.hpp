// What the norm and the gates divide, take roots and logarithms with: the axis `special`.
#pragma once

#include <type_traits>

#include "kda/arithmetic.hpp"
#include "numeric/h100.hpp"

namespace kda_check::kda {

template <class T>
KDA_CHECK_INLINE T divided(Special special, T a, T b) {
  if constexpr (std::is_same_v<T, float>)
    if (special == Special::triton) return numeric::h100::div_full(a, b);
  return a / b;
}

template <class T>
KDA_CHECK_INLINE T square_root(Special special, T x) {
  if constexpr (std::is_same_v<T, float>) {
    if (special == Special::triton) return numeric::h100::sqrt_ftz(x);
    return __builtin_sqrtf(x);
  } else {
    return __builtin_sqrt(x);
  }
}

}  // namespace kda_check::kda
