// The chain rules of docs/kda.md, "Backward", and what they share with the gates forwards, an element at a
// time, from one source for the CPU and a GPU. Sums around them, and their order, are the caller's.
#pragma once

#include "numeric/strict.hpp"

namespace kda_check::kda {

/// The gradients of the gate's parameters add up this many tokens of a sequence from the first on, and these
/// sums from the last on.
inline constexpr int parameter_block_tokens = 64;

/// 1 / (1 + exp(-z)), from exp(-z).
template <class T>
KDA_CHECK_BOTH T sigmoid_from(T exponential) {
  return T(1) / (T(1) + exponential);
}

/// From here on log1p(exp(y)) rounds to y: the softplus.
template <class T>
inline constexpr T softplus_threshold = sizeof(T) == sizeof(float) ? T(20) : T(40);

/// x slope, a zero winning over an infinite slope: no gradient comes through a gate that has gone to -inf,
/// however steep it is there, nor through a saturated sigmoid.
template <class T>
KDA_CHECK_BOTH T through_slope(T x, T slope) {
  const bool is_infinite = slope - slope != 0 && slope == slope;
  return x == 0 && is_infinite ? T(0) : slope * x;
}

/// Through the L2 norm: `along` is the sum of dy y over the row, `reciprocal` that of the norm.
template <class T>
KDA_CHECK_BOTH T through_l2_norm(T dy, T y, T along, T reciprocal) {
  return (dy - along * y) * reciprocal;
}

/// Through the softplus gate, -A dg sigmoid(y): `rising` is sigmoid(y).
template <class T>
KDA_CHECK_BOTH T through_softplus(T dg, T amplitude, T rising) {
  return -through_slope(dg, amplitude) * rising;
}

/// Through the bounded gate, bound dg s (1 - s) A: `rising` is s = sigmoid(A y), `falling` sigmoid(-A y).
template <class T>
KDA_CHECK_BOTH T through_bounded(T dg, T amplitude, T bound, T rising, T falling) {
  return through_slope(bound * dg * rising * falling, amplitude);
}

/// Through the sigmoid of the write strength, m s (1 - s), 1 - s being the sigmoid of the opposite: a
/// saturated one keeps its digits.
template <class T>
KDA_CHECK_BOTH T through_strength(T gradient, T factor, T rising, T falling) {
  return gradient * (factor * rising) * falling;
}

}  // namespace kda_check::kda
