// What the norm and the gates divide, take roots and logarithms with: the axis `special`.
#pragma once

#include <type_traits>

#include "kda/arithmetic/arithmetic.hpp"
#include "numeric/h100.hpp"

namespace kda_check::kda {

/// Divisions and roots are the same.
constexpr bool is_triton(Special special) {
  return special == Special::triton || special == Special::triton_logf;
}

/// Sigmoids are of tanh.approx.
constexpr bool has_tanh(Special special) {
  return special == Special::fast || special == Special::fast_floor;
}

/// Norms are of rsqrt.approx, the same but for a floor, and reciprocals of rcp.approx.
constexpr bool is_fast(Special special) {
  return has_tanh(special) || special == Special::fast_division || special == Special::fast_signed;
}

template <class T>
KDA_CHECK_INLINE T divided(Special special, T a, T b) {
  if constexpr (std::is_same_v<T, float>) {
    if (is_triton(special)) return numeric::h100::div_full(a, b);
    if (is_fast(special) && !has_tanh(special)) return a * numeric::h100::rcp_ftz(b);
  }
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

/// tanh(x / 2) of special=fast.
template <class T>
KDA_CHECK_INLINE T fast_tanh_of_half(T x) {
  if constexpr (std::is_same_v<T, float>)
    return numeric::h100::tanh(x * 0.5F);
  else
    return x;  // there is none
}

/// constant sigmoid(x) from tanh(x / 2), rounded once.
template <class T>
KDA_CHECK_INLINE T bounded_by_tanh(T constant, T tanh) {
  const T half = constant * T(0.5);
  if constexpr (std::is_same_v<T, float>)
    return __builtin_fmaf(tanh, half, half);
  else
    return __builtin_fma(tanh, half, half);
}

/// 1 / (1 + exp(-x)) of special=fast.
template <class T>
KDA_CHECK_INLINE T fast_sigmoid(T x) {
  return bounded_by_tanh(T(1), fast_tanh_of_half(x));
}

/// 1 / x, in place of exp(-G), x being exp(G).
template <class T>
KDA_CHECK_INLINE T reciprocal_of(Special special, T x) {
  if constexpr (std::is_same_v<T, float>)
    if (is_fast(special)) return numeric::h100::rcp_ftz(x);
  return divided(special, T(1), x);
}

/// What stands under the root of a norm.
template <class T>
KDA_CHECK_INLINE T under_root(Special special, T sum) {
  constexpr T floor = T(1e-24), epsilon = T(1e-6);
  if (special == Special::fast_floor) return sum < floor ? floor : sum;
  return sum + epsilon;
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
