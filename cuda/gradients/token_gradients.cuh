// From the gradients of a recurrence, of either form, to those of the tensors as they are stored:
//
//   chain       the value heads of a group, norm, gate and sigmoid backwards, a token at a time
//   parameters  dA_log and ddt_bias: over the tokens of a block, its blocks, the sequences
#pragma once

#include "cuda/problem/problem.cuh"

namespace kda_check::cuda {

/// What the gradients of the recurrence are, of the heads at work. [tokens]: all batch rows together; rows of
/// K and V lie key_stride and value_stride apart; by_head: [heads][tokens] in place of [tokens][heads].
template <class T>
struct TokenGradients : HeadsAtWork {
  const PieceRange* blocks_of;  ///< [sequence_count]
  const TokenRange* blocks;     ///< [block_count]: what is added up first of the gate's parameters
  int sequence_count, block_count, token_count;
  int key_stride, value_stride;
  bool by_head;
  T dq_factor;                 ///< of dq, before all else
  bool norm_by_reciprocal;     ///< q and k were multiplied by the reciprocal of their norm, not divided
  bool bias_from_stored_gate;  ///< ddt_bias adds up dg as it is stored
  T *dq, *dk, *dg;             ///< [tokens][heads][K], of normalised q and k; then dg of the stored gate
  T* dread;             ///< [tokens][heads][K] of erase k, which dk is then without; null: there is none
  T* y;                 ///< [tokens][heads][V] dv, with a write gate of write v
  const T* dbeta;       ///< [tokens][heads] of the write strength; null: r . e, of columns r e
  T *r, *e;             ///< [tokens][heads][V]
  T* initial_gradient;  ///< [sequences][heads][K][V]; null: it is not wanted
  T* amplitude_terms;   ///< [tokens][heads] of dA
  T *amplitude_sums, *bias_sums;  ///< [blocks][heads], [blocks][heads][decays]

  __device__ std::size_t gradient_row(std::size_t token, int local) const {
    return by_head ? std::size_t(local) * token_count + token : row(token, local);
  }
  /// From a row to that of the next value head.
  __device__ std::size_t head_step() const { return by_head ? token_count : 1; }
};

// chain.cu
template <class T>
void launch_backward_chain(bool is_fused, const DeviceProblem& p, const TokenGradients<T>& work);
// parameters.cu
template <class T>
void launch_backward_parameters(const DeviceProblem& p, const TokenGradients<T>& work,
                                cudaStream_t stream = nullptr);

}  // namespace kda_check::cuda
