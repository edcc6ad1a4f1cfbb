// What the norm and the gates divide, take roots and logarithms with: the axis `special`.
#pragma once

#include <type_traits>

#include "kda/arithmetic.hpp"
#include "numeric/h100.hpp"

namespace kda_check::kda {

/// Divisions and roots are the same.
constexpr bool is_triton(Special special) {
  return special == Special::triton || special == Special::triton_logf;
}

template <class T>
KDA_CHECK_INLINE T divided(Special special, T a, T b) {
  if constexpr (std::is_same_v<T, float>)
    if (is_triton(special)) return numeric::h100::div_full(a, b);
  return a / b;
}

template <class T>
KDA_CHECK_INLINE T square_root(Special special, T x) {
  if constexpr (std::is_same_v<T, float>) {
    if (is_triton(special)) return numeric::h100::sqrt_ftz(x);
    return __builtin_sqrtf(x);
  } else {
    return __builtin_sqrt(x);
  }
}

/// 1 / (1 + exp(-x)) of special=fast.
template <class T>
KDA_CHECK_INLINE T fast_sigmoid(T x) {
  if constexpr (std::is_same_v<T, float>)
    return __builtin_fmaf(numeric::h100::tanh(x * 0.5F), 0.5F, 0.5F);
  else
    return x;  // there is none
}

/// 1 / sqrt(x) of special=fast.
template <class T>
KDA_CHECK_INLINE T fast_reciprocal_root(T x) {
  if constexpr (std::is_same_v<T, float>)
    return numeric::h100::rsqrt_ftz(x);
  else
    return x;  // there is none
}

}  // namespace kda_check::kda
