// What the kernels of the oracle see: a portion of the tokens of a problem, for some of its value heads.
#pragma once

#include "cuda/problem/problem.cuh"
#include "kda/kernels/oracle_blocks.hpp"
#include "kda/kernels/truth/row_norm.hpp"

namespace kda_check::cuda {

constexpr int block_threads = 128;

__device__ inline std::size_t thread_index() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }

/// What the recurrence takes of one channel of a token, side by side: a warp reads them in sixteen bytes.
struct ChannelPairs {
  double k_hi, k_lo, q_hi, q_lo, decay_hi, decay_lo;
  double retained, written;  ///< |1 - beta k^2| and |beta k|
};

/// Three arrays: values and their magnitudes.
struct WithMagnitude {
  double *hi, *lo, *magnitude;
};

/// Tensors have their usual shapes, but tokens are those of the portion and heads are those that were asked
/// for; the query heads are those that these read.
struct OraclePortion {
  int tokens, heads, query_heads, K, V;
  int value_stride;  ///< columns of `values`: V or more
  int first_head;    ///< of the problem: A_log, dt_bias and initial_state are whole
  int all_heads, heads_per_query;
  Tensor q, k, v, g, beta, A_log, dt_bias, initial_state;
  double scale, lower_bound;
  kda::Gate gate;
  bool qk_l2norm, beta_sigmoid, allow_neg_eigval, state_v_first;

  kda::RowNorm* norms;     ///< [tokens][query_heads][2]: of q, of k
  ChannelPairs* channels;  ///< [tokens][heads][K]
  double* values;          ///< [tokens][heads][value_stride], zeros beyond V
  double* strengths;       ///< [tokens][heads][2] beta, hi and lo
  WithMagnitude state;     ///< [sequences][heads][K][V]
  WithMagnitude o;         ///< [tokens][heads][V]

  // For the error of the recurrence in fp64; null pointers in double-double.
  kda::TokenNorms* token_norms;  ///< [tokens][heads]
  double* errors;                ///< [sequences][heads][V], of the columns of the state
  double* worst;                 ///< [2], over magnitudes: of o, of the states behind the last tokens

  const TokenRange* ranges;  ///< of each sequence the tokens that are here

  __device__ int query_of(int head) const {
    return (first_head + head) / heads_per_query - first_head / heads_per_query;
  }
};

/// Of a block of the recurrence, at most.
std::size_t oracle_shared_bytes(int K);
/// Fills the states of `sequences` sequences from the initial state, the first of which is state `first`.
void launch_oracle_states(const OraclePortion& p, int sequences, std::size_t first, cudaStream_t stream);
/// Norms, values, gates, exponentials and sigmoids of all tokens of the portion (inputs.cu).
void launch_oracle_inputs(const OraclePortion& p, cudaStream_t stream);
/// Rows of V elements, widened to `value_stride` columns; zeros beyond them and where there is no tensor.
void launch_oracle_values(const OraclePortion& p, const Tensor& from, double* to, cudaStream_t stream);
/// The recurrence over the tokens of `sequences` ranges (recurrence.cuh).
void launch_oracle_recurrence(const OraclePortion& p, int sequences, cudaStream_t stream);
void launch_oracle_recurrence_in_fp64(const OraclePortion& p, int sequences, cudaStream_t stream);

}  // namespace kda_check::cuda
