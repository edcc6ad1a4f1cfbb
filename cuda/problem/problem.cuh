// A problem as the kernels see it: pointers to the device's memory, norms and states.
#pragma once

#include "cuda/arithmetic/arithmetic.cuh"
#include "cuda/problem/request.hpp"

namespace kda_check::cuda {

/// Channels that a warp keeps in registers, eight a lane: the widest K.
constexpr int widest_key = 256;
/// The runtime's limit on the second and third extent of a grid, where heads and column tiles are.
constexpr std::size_t most_blocks = 65535;

struct Tensor {
  const void* data;  ///< null: there is none
  numeric::DType dtype;
};
__device__ inline Stored fetch_stored(const Tensor& tensor, std::size_t i) {
  return fetch_stored(tensor.data, tensor.dtype, i);
}
template <class T>
__device__ T load(const Tensor& tensor, std::size_t i) {
  return load<T>(tensor.data, tensor.dtype, i);
}
struct MutableTensor {
  void* data;
  numeric::DType dtype;
};

/// Tokens [first, first + count) of all batch rows together.
struct TokenRange {
  std::uint32_t first, count;
};

/// Pieces [first, first + count) that a sequence is cut into, numbered through all sequences.
struct PieceRange {
  std::uint32_t first, count;
};

struct DeviceProblem {
  int H, HV, K, V;
  int decays;  ///< of a head: K, or 1, which is in every channel of g and dt_bias but not of their gradients
  kda::Strength strength;  ///< what beta is, or erase and write in place of it
  Tensor q, k, v, g, beta, erase, write, A_log, dt_bias, initial_state;
  MutableTensor o, final_state;
  Tensor output_gradient, state_gradient;
  MutableTensor gradients[kda::gradient_count];  ///< by kda::Gradient
  double scale, lower_bound;
  kda::Gate gate;
  bool qk_l2norm, beta_sigmoid, allow_neg_eigval, state_v_first;
  Exponential exponential;
  CastPoints casts;

  __device__ int query_head(int head) const { return head / (HV / H); }
  /// Element (token, head) of [tokens][heads].
  __device__ std::size_t at(std::size_t token, int heads, int head) const { return token * heads + head; }
};

/// Value heads [first_head, first_head + heads), whole groups of `group` that share a query head: what is at
/// work at one time. Arrays that kernels keep between them have these heads alone, [tokens] or [states] of
/// all batch rows together; `local` counts from the first.
struct HeadsAtWork {
  int first_head, heads, group;

  /// Row (token, local) of the value heads, and that of its query head.
  __device__ std::size_t row(std::size_t token, int local) const { return token * heads + local; }
  __device__ std::size_t query_row(std::size_t token, int local) const {
    return token * (heads / group) + local / group;
  }
  /// Where state `number` of a head begins.
  __device__ std::size_t state(std::size_t number, int local, const DeviceProblem& p) const {
    return (number * heads + local) * p.K * p.V;
  }
};

/// sqrt(sum_k x_k^2 + 1e-6) of a row that a warp holds, lane l the channels l, l + 32, ...
template <bool is_fused, class T, int rows>
__device__ T warp_norm(const T (&x)[rows], const bool (&valid)[rows], int K) {
  const T part = warp_dot_part<is_fused>(x, x, valid);
  const T sum = K >= warp_lanes ? warp_sum(part, warp_lanes) : warp_sum(part, K);
  return square_root(sum + T(1e-6));
}

/// Element (k, v) of a state in its own layout.
__device__ inline std::size_t state_element(const DeviceProblem& p, std::size_t state, int k, int v) {
  return p.state_v_first ? (state * p.V + v) * p.K + k : (state * p.K + k) * p.V + v;
}

}  // namespace kda_check::cuda
