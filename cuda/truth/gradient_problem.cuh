// What the kernels of the gradient oracle see: all tokens of some heads of a problem, and the part of them
// whose gradients are made at once.
#pragma once

#include "cuda/truth/gradient_schedule.hpp"
#include "cuda/truth/problem.cuh"
#include "kda/kernels/truth/gradient_elements.hpp"
#include "kda/kernels/truth/gradient_step.hpp"
#include "kda/kernels/truth/oracle_elements.hpp"

namespace kda_check::cuda {

/// Derivatives of the log decay of a channel.
struct ChannelSlopes {
  double gate_hi, gate_lo, amplitude_hi, amplitude_lo;
};

enum class RowSum : int { query, key, gate };
constexpr int row_sums = 3;

/// Rows of values have `value_stride` columns, V rounded up to eight: those beyond V count in sums, as zeros.
/// States are [..][heads][K][value_stride].
struct GradientPortion : OraclePortion {
  Tensor output_gradient, state_gradient;
  const GradientPiece* sequences;  ///< whole
  int checkpoint_tokens;           ///< a state is kept before every so many tokens of a sequence

  // Of all tokens: [tokens][heads][value_stride].
  double* incoming;  ///< do
  WithMagnitude error, write, residual, dv;
  double* residual_terms;
  WithMagnitude checkpoints;

  // Of the part.
  const GradientPiece* pieces;
  int piece_count, rows;            ///< rows: tokens of all pieces
  WithMagnitude gradients;          ///< D of each piece: where the sequence goes on, in and out
  ChannelSlopes* slopes;            ///< [rows][heads][K]
  double *chunk_terms, *end_terms;  ///< [pieces][heads][K], carried from part to part
  kda::GradientSum* amplitudes;     ///< [rows][heads]
  kda::GradientSum* parameters;     ///< [sequences][heads][K + 1]: dt_bias, A_log

  // Of the part alone, while the next is at work.
  WithMagnitude groups;          ///< the state that enters each group
  WithMagnitude final_states;    ///< of each piece
  WithMagnitude sums[row_sums];  ///< [rows][heads][K]

  // What is handed out of it.
  WithMagnitude dq, dk;    ///< [rows][query_heads][K]
  WithMagnitude dg;        ///< [rows][heads][K]
  WithMagnitude dbeta;     ///< [rows][heads]
  WithMagnitude d_state;   ///< [pieces][heads], in the layout of the tensor
  WithMagnitude d_A, d_b;  ///< [heads], [heads][K], of all sequences
  double *dg_chunk, *dbeta_spread, *d_A_chunk, *d_A_spread, *d_b_chunk, *d_b_spread;
  int sequence_count, chunk_size;

  __device__ std::size_t state_size() const { return std::size_t(K) * value_stride; }
  /// Element (k, v) of state `state` of [..][heads].
  __device__ std::size_t state_at(std::size_t state, int head, int k, int v) const {
    return ((state * heads + head) * K + k) * value_stride + v;
  }
  /// Element (k, v) of a tensor of states, or 0 where there is none.
  __device__ double stored_state(const Tensor& tensor, std::size_t sequence, int head, int k, int v) const {
    if (tensor.data == nullptr || k >= K || v >= V) return 0.0;
    const std::size_t state = (sequence * all_heads + first_head + head) * K * V;
    return load<double>(tensor, state + (state_v_first ? std::size_t(v) * K + k : std::size_t(k) * V + v));
  }
};

/// Widest V: more would be more warps than a block has registers for.
constexpr int widest_value = 256;

/// Of any block of these kernels, at most.
std::size_t gradient_shared_bytes(int K, int V);
/// errors: e, w and checkpoints of all sequences, from their first token on (gradient_columns.cuh).
/// residuals: r and dv, from their last token on; neither waits for the other.
/// states: those of the part, its groups' and the final ones (gradient_states.cuh).
/// rows: the sums over V of the part, and D (gradient_rows.cuh).
enum class GradientPass : int { errors, residuals, states, rows };
template <class Step>
void launch_gradient_pass(GradientPass pass, const GradientPortion& p, cudaStream_t stream);
/// From there to the gradients of what is stored (gradient_chain.cu).
void launch_gradient_chain(bool in_fp64, const GradientPortion& p, cudaStream_t stream);
/// The gradients of the initial states of the part.
void launch_gradient_initial_states(const GradientPortion& p, cudaStream_t stream);
/// Zeroes the sums of the gate's parameters; adds up those of all sequences.
void launch_gradient_parameters_begin(const GradientPortion& p, cudaStream_t stream);
void launch_gradient_parameters_end(const GradientPortion& p, cudaStream_t stream);

}  // namespace kda_check::cuda
