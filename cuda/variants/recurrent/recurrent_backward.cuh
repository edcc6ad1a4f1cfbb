// gpu-recurrent backwards (docs/kda.md, "Backward"): what its kernels share, in the order they run.
//
//   prepare     inputs as the recurrence reads them: norm, scale, gate, sigmoid
//   columns     down the columns of the state, sums over k: forwards the errors e_t, with a checkpoint of the
//               state before every segment of tokens; backwards the gradients r_t of the predictions. Neither
//               needs the other: they run at the same time
//   rows        along its rows, sums over v: dq, dk and dg. Segment by segment from the last, the states
//               computed again from the checkpoint
//
// The rest is in gradients/token_gradients.cuh.
//
// Columns never meet in a sum over k, nor rows in one over v, so a warp has what its sums need in registers.
#pragma once

#include "cuda/arithmetic/strip.cuh"
#include "cuda/device/launch.cuh"
#include "cuda/gradients/token_gradients.cuh"
#include "cuda/problem/problem.cuh"

namespace kda_check::cuda {

/// Between two checkpoints. Every fourth state of a segment would do; memory is what they cost.
template <class T>
constexpr int segment_tokens = sizeof(T) == sizeof(float) ? 16 : 8;

/// A sequence: tokens [first, first + count) of all batch rows together; its first segment in the order of
/// all of them.
struct BackwardRange {
  std::uint32_t first, count, segment;
};

/// r, y and e are those of TokenGradients.
template <class T>
struct BackwardWork : TokenGradients<T> {
  const BackwardRange* ranges;  ///< [sequence_count]
  T *q, *k;                     ///< [tokens][heads / group][K], normalised, q with scale
  T* decay;                     ///< [tokens][heads][K]
  T* read;     ///< [tokens][heads][K] erase k, what predictions read the state along; null: k
  T* beta;     ///< [tokens][heads], with betas of columns [tokens][heads][V]
  T *v, *d_o;  ///< [tokens][heads][V]
  T *initial, *final_gradient;  ///< [sequences][heads][K][V]
  T* checkpoints;               ///< [segments][heads][K][V]
  T* write;                     ///< [tokens][heads][V] beta e
  T* carried_sums;              ///< [tokens][heads][K][carried_elements]; null: rows are whole
};

template <class T>
void launch_backward_prepare(bool is_fused, const DeviceProblem& p, const BackwardWork<T>& work);
template <class T>
void launch_backward_columns(bool is_fused, const DeviceProblem& p, const BackwardWork<T>& work);
template <class T>
void launch_backward_rows(bool is_fused, const DeviceProblem& p, const BackwardWork<T>& work);

/// The widest V whose rows a strip has in registers; wider ones come in parts, one after the other.
constexpr int widest_strip = 256;
/// Elements that a row of the state carries from part to part, of each of four sums.
constexpr int carried_elements = 4 * warp_lanes;

}  // namespace kda_check::cuda
