// gpu-chunk backwards (docs/kda.md, "Chunk backward"): what its kernels share, in the order they run, after
// F1 to F7. Every stage is written to memory, as forwards.
//
//   local     dv_local of B1; and qg^T do, of which B2 makes the gradient of the entering state
//   states    F8, F9, F11 of the state, and beside it B2 of its gradient: dh, dv, from the last chunk to the
//             first; the only kernel that goes from chunk to chunk
//   inter     B3, through the states: dq, dk, dw; dAqk of B1
//   inverse   B3, through the inverse: dAkk, dkb, dbeta, dv of what is stored
//   intra     dG of B3 and the rest of dk; B4, within the chunk: added to dq, dk, dbeta and dG; B5: dg, the
//   sums
//             of dG
//
// The rest is in gradients/token_gradients.cuh.
#pragma once

#include "cuda/arithmetic/tile.cuh"
#include "cuda/gradients/token_gradients.cuh"
#include "cuda/variants/chunk/chunk.cuh"

namespace kda_check::cuda {

/// y is what is stored as dv, but for a write gate; r and e are not used.
template <class T>
struct ChunkBackwardWork : TokenGradients<T> {
  ChunkWork<T> forward;
  T* d_o;             ///< [tokens][heads][V] do, as products take it
  T *dAqk, *dAkk;     ///< [tokens][heads][C]
  T *dv_local, *dv;   ///< [tokens][heads][V]
  T* by_output;       ///< [chunks][heads][K][V] qg^T do
  T *dh, *exact_dh;   ///< [chunks][heads][K][V]; not rounded, null: nobody asks
  T *dw, *dkb;        ///< [tokens][heads][K]
  T* write_gradient;  ///< [tokens][heads] dbeta
};

constexpr int warps = tile_threads / warp_lanes;
constexpr int warp_rows = most_rows / warps;

/// A tile of either factor in shared memory, both read along their rows.
template <class T>
struct RowTiles {
  alignas(16) T left[tile_side][tile_stride<T>];
  alignas(16) T right[tile_side][tile_stride<T>];
};

/// One chunk of one head, 256 threads: how all of these kernels begin. Blocks that share a chunk are
/// neighbours, so that what they read again is in the cache.
template <class T>
class ChunkBackward {
 protected:
  __device__ ChunkBackward(const DeviceProblem& p, const ChunkBackwardWork<T>& work, int blocks_of_chunk)
      : p_(p),
        work_(work),
        forward_(work.forward),
        index_(blockIdx.x / static_cast<unsigned>(blocks_of_chunk)),
        block_(static_cast<int>(blockIdx.x % static_cast<unsigned>(blocks_of_chunk))),
        chunk_(work.forward, index_, blockIdx.y) {}

  __device__ T exponential_of(T x) const {
    return kda::rounded(p_.casts.exponentials, exponential(p_.exponential, x));
  }
  __device__ T operand(T x) const { return kda::rounded(p_.casts.operands, x); }

  __device__ T beta(int i) const { return *chunk_.row(forward_.beta, i, 1); }
  __device__ T q(int i, int k) const { return chunk_.query_row(forward_.q, i, p_.K)[k]; }
  __device__ T key(int i, int k) const { return chunk_.query_row(forward_.k, i, p_.K)[k]; }
  /// What predictions read the state along.
  __device__ T read(int i, int k) const { return chunk_.read_row(forward_, i, p_.K)[k]; }
  __device__ T G(int i, int k) const { return chunk_.row(forward_.G, i, p_.K)[k]; }
  /// This chunk's [K][V] of an array of [chunks][heads][K][V].
  __device__ T* state(T* array) const { return array + forward_.state(index_, chunk_.local, p_); }

  /// The chunk's rows of an array of [tokens][heads][width] from column `first` on, on their way to a tile.
  __device__ void fetch(T* tile, T* array, int first, int width) const {
    copy_tile_async(tile, tile_stride<T>,
                    TileSource<T>{chunk_.row(array, 0, width) + first, chunk_.stride(width), width},
                    chunk_.rows, min(tile_side, width - first));
  }
  /// 64 rows of a state, those of the keys from `first_key` on, 64 of its columns.
  __device__ void fetch_state(T* tile, T* array, int first_key, int first_value) const {
    copy_tile_async(tile, tile_stride<T>,
                    TileSource<T>{state(array) + std::size_t(first_key) * p_.V + first_value,
                                  static_cast<std::size_t>(p_.V), p_.V},
                    min(tile_side, p_.K - first_key), min(tile_side, p_.V - first_value));
  }
  /// ... are there, and what was written to shared memory too.
  __device__ static void arrive() {
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
  }
  const DeviceProblem& p_;
  const ChunkBackwardWork<T>& work_;
  const ChunkWork<T>& forward_;
  const unsigned index_;  ///< of the chunk
  const int block_;       ///< of those that have it
  const DeviceChunk<T> chunk_;
};

template <class T>
void launch_chunk_backward_local(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work);
template <class T>
void launch_chunk_backward_states(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work);
template <class T>
void launch_chunk_backward_inter(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work);
template <class T>
void launch_chunk_backward_inverse(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work);
/// `decay`: as launch_chunk_scores().
template <class T>
void launch_chunk_backward_intra(bool is_fused, kda::DecayForm decay, const DeviceProblem& p,
                                 const ChunkBackwardWork<T>& work);

}  // namespace kda_check::cuda
