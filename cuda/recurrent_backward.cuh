// gpu-recurrent backwards (docs/kda.md, "Backward"): what its kernels share, in the order they run.
//
//   prepare     inputs as the recurrence reads them: norm, scale, gate, sigmoid
//   columns     down the columns of the state, sums over k: forwards the errors e_t, with a checkpoint of the
//               state before every segment of tokens; backwards the gradients r_t of the predictions. Neither
//               needs the other: they run at the same time
//   rows        along its rows, sums over v: dq, dk and dg. Segment by segment from the last, the states
//               computed again from the checkpoint
//   chain       value heads of a group, norm, gate and sigmoid backwards, a token at a time
//   parameters  dA_log and ddt_bias: over the tokens of a block, its blocks, the sequences
//
// Columns never meet in a sum over k, nor rows in one over v, so a warp has what its sums need in registers.
#pragma once

#include "launch.cuh"
#include "strip.cuh"

namespace kda_check::cuda {

/// Between two checkpoints. Every fourth state of a segment would do; memory is what they cost.
template <class T>
constexpr int segment_tokens = sizeof(T) == sizeof(float) ? 16 : 8;

/// A sequence: tokens [first, first + count) of all batch rows together; its first segment and its first
/// block of tokens in the order of all of them.
struct BackwardRange {
  std::uint32_t first, count, segment, block;
};

/// Of value heads [first_head, first_head + heads), whole groups. [tokens]: all batch rows together.
template <class T>
struct BackwardWork {
  const BackwardRange* sequences;  ///< [sequence_count]
  const TokenRange* blocks;        ///< [block_count], of at most kda::parameter_block_tokens
  int sequence_count, block_count, token_count;
  int first_head, heads, group;
  T *q, *k;                       ///< [tokens][heads / group][K], normalised, q with scale
  T *decay, *beta;                ///< [tokens][heads][K], [tokens][heads]
  T *v, *d_o;                     ///< [tokens][heads][V]
  T *initial, *final_gradient;    ///< [sequences][heads][K][V]
  T* initial_gradient;            ///< [sequences][heads][K][V]
  T* checkpoints;                 ///< [segments][heads][K][V]
  T *e, *write;                   ///< [tokens][heads][V] e and beta e
  T *r, *y;                       ///< [tokens][heads][V] r and beta r
  T *dq, *dk, *dg;                ///< [tokens][heads][K], of the recurrence; then dg of the stored gate
  T* carried_sums;                ///< [tokens][heads][K][carried_elements]; null: rows are whole
  T* amplitude_terms;             ///< [tokens][heads] of dA
  T *amplitude_sums, *bias_sums;  ///< [blocks][heads], [blocks][heads][K]

  /// Row (token, head) of the value heads here, and that of its query head.
  __device__ std::size_t row(std::size_t token, int head) const { return token * heads + head; }
  __device__ std::size_t query_row(std::size_t token, int head) const {
    return token * (heads / group) + head / group;
  }
  __device__ std::size_t state(std::size_t number, int head, const DeviceProblem& p) const {
    return (number * heads + head) * p.K * p.V;
  }
};

template <class T>
void launch_backward_prepare(bool is_fused, const DeviceProblem& p, const BackwardWork<T>& work);
template <class T>
void launch_backward_columns(bool is_fused, const DeviceProblem& p, const BackwardWork<T>& work);
template <class T>
void launch_backward_rows(bool is_fused, const DeviceProblem& p, const BackwardWork<T>& work);
template <class T>
void launch_backward_chain(bool is_fused, const DeviceProblem& p, const BackwardWork<T>& work);
template <class T>
void launch_backward_parameters(const DeviceProblem& p, const BackwardWork<T>& work);

/// The widest V whose rows a strip has in registers; wider ones come in parts, one after the other.
constexpr int widest_strip = 256;
/// Elements that a row of the state carries from part to part, of each of four sums.
constexpr int carried_elements = 4 * warp_lanes;

}  // namespace kda_check::cuda
