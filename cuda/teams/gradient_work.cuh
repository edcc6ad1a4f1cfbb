// Where the arrays of a backward pass are, and its kernels in the order they run: what the forward pass
// leaves is in TeamWork. Of the token form the pieces are those between checkpoints of the state, and rows
// are as wide as a whole number of tiles.
#pragma once

#include "cuda/gradients/token_gradients.cuh"
#include "cuda/teams/work.cuh"
#include "kda/kernels/chunk_backward_block.hpp"

namespace kda_check::cuda {

/// Columns of a state, or channels of its transpose, that a block of threads takes token by token.
constexpr int tile_columns = 64;
/// States are kept this many tokens apart.
constexpr int checkpoint_tokens = 16;
/// Two tiles of the transposed state have to find room in shared memory.
constexpr int widest_emulated_value = 256;

template <class T>
struct TeamGradientWork : TeamWork<T> {
  T* d_o;                  ///< [heads][tokens][value_stride], as products take it
  T* written;              ///< ... beta times that of v_new; in the chunk form dv_local before
  T* dv;                   ///< ... of v_new; of the prediction
  T *dq, *dk, *dg;         ///< [heads][tokens][key_stride], of a value head
  T* dread;                ///< ... of erase k, which dk is then without; null: there is none
  T* dbeta;                ///< [heads][tokens]
  T* entering;             ///< [heads][chunks][K][value_stride] the state in front of each
  T* gradient;             ///< [sequences][heads][K][value_stride] of the state: final to initial
  T* leaving;              ///< [heads][chunks][K][value_stride] that behind each chunk
  T *error, *write;        ///< token form: [heads][tokens][value_stride] e; beta e
  T* history;              ///< token form: [sequences][heads][tiles of K][checkpoint_tokens][V][tile]
  TokenGradients<T> sums;  ///< with these arrays

  /// A matrix of a piece, numbered through all sequences.
  __device__ std::size_t matrix_of(int local, int chunk, const DeviceProblem& p) const {
    return (std::size_t(local) * this->chunk_count + chunk) * p.K * this->value_stride;
  }
  void set_heads(int first, int count) {
    this->first_head = sums.first_head = first, this->heads = sums.heads = count;
    sums.dq = dq, sums.dk = dk, sums.dg = dg, sums.dread = dread, sums.y = written, sums.dbeta = dbeta;
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
template <class T>
void launch_output_gradient(cudaStream_t stream, const DeviceProblem& p, const TeamGradientWork<T>& work);
/// From the gradients of the recurrence to those that are stored, in any order of sums, with any exponential.
void launch_gradient_chain(cudaStream_t stream, const DeviceProblem& p, const TeamGradientWork<float>& work);
// chunk_backward.cu, after F1 to F7
/// dv_local of B1.
template <class T>
void launch_team_local_gradients(cudaStream_t stream, const DeviceProblem& p,
                                 const TeamGradientWork<T>& work);
/// F8, F9 and F11 of `state`, and B2 of `gradient`.
template <class T>
void launch_team_state_gradients(cudaStream_t stream, const DeviceProblem& p,
                                 const TeamGradientWork<T>& work);
/// The rest of B1, B3, B4 and B5.
template <class T>
void launch_team_chunk_gradients(cudaStream_t stream, const DeviceProblem& p,
                                 const TeamGradientWork<T>& work);
// tokens_backward.cu
void launch_team_tokens_backward(cudaStream_t stream, const DeviceProblem& p,
                                 const TeamGradientWork<float>& work);

}  // namespace kda_check::cuda
