// Where the arrays of an emulated backward pass are, and its kernels in the order they run: what the forward
// pass leaves is in EmulationWork. Of the token form the pieces are those between checkpoints of the state,
// and rows are as wide as a whole number of tiles.
#pragma once

#include "cuda/gradients/token_gradients.cuh"
#include "cuda/spread/emulation.cuh"
#include "kda/kernels/chunk_backward_block.hpp"

namespace kda_check::cuda {

/// Columns of a state, or channels of its transpose, that a block of threads takes token by token.
constexpr int tile_columns = 64;
/// States are kept this many tokens apart.
constexpr int checkpoint_tokens = 16;
/// Two tiles of the transposed state have to find room in shared memory.
constexpr int widest_emulated_value = 256;

struct GradientWork : EmulationWork {
  const PieceRange* chunks_of;  ///< [sequence_count]
  float* d_o;                   ///< [heads][tokens][value_stride], as products take it
  float* written;               ///< ... beta times that of v_new; in the chunk form dv_local before
  float* dv;                    ///< ... of v_new; of the prediction
  float *dq, *dk, *dg;          ///< [heads][tokens][key_stride], of a value head
  float* dbeta;                 ///< [heads][tokens]
  float* entering;              ///< [heads][chunks][K][value_stride] the state in front of each
  float* gradient;              ///< [heads][sequences][K][value_stride] of the state: final to initial
  float* leaving;               ///< [heads][chunks][K][value_stride] that behind each chunk
  float *error, *write;         ///< token form: [heads][tokens][value_stride] e; beta e
  float* history;               ///< token form: [heads][sequences][tiles of K][checkpoint_tokens][V][tile]
  TokenGradients<float> sums;   ///< of the parameters; `dg` there by token and head

  /// A matrix of a piece, numbered through all sequences.
  __device__ std::size_t matrix_of(int local, int chunk, const DeviceProblem& p) const {
    return (std::size_t(local) * chunk_count + chunk) * p.K * value_stride;
  }
};

/// What a team has for chunks of so many rows: the scratch memory of kernels, h and dh, dAqk and dAkk, dw.
struct GradientScratch {
  std::size_t of_kernels, state, square, by_key;
  __host__ __device__ GradientScratch(std::size_t rows, std::size_t K, std::size_t V, std::size_t key_stride,
                                      std::size_t value_stride)
      : of_kernels(kda::ChunkBackwardScratch(rows, K, V, key_stride, value_stride, rows).total()),
        state(K * value_stride),
        square(rows * rows),
        by_key(rows * key_stride) {}
  __host__ __device__ std::size_t total() const { return of_kernels + 2 * state + 2 * square + by_key; }
};

// gradients.cu
void launch_gradient_inputs(cudaStream_t stream, const DeviceProblem& p, const GradientWork& work);
void launch_gradient_chain(cudaStream_t stream, const DeviceProblem& p, const GradientWork& work);
// chunk_backward.cu
void launch_emulation_chunk_backward(cudaStream_t stream, bool is_fused, const DeviceProblem& p,
                                     const GradientWork& work);
// tokens_backward.cu
void launch_emulation_tokens_backward(cudaStream_t stream, const DeviceProblem& p, const GradientWork& work);

}  // namespace kda_check::cuda
