// The chunk form on the GPU: where its stages are, and the kernels in the order they run (F1 to F11 of
// docs/kda.md, "Stages"). Every stage is written to memory, so every one can be looked at.
#pragma once

#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"

namespace kda_check::cuda {

/// Rows of a sub-block: what shares an anchor, and the side of the inverse's diagonal blocks.
constexpr int block_rows = 16;
/// The longest chunk, and the side of the tiles that products are computed in.
constexpr int most_rows = 64;
constexpr int most_row_blocks = most_rows / block_rows;
constexpr int channels = warp_lanes;  ///< staged together, a lane for each

/// Of the heads at work. [tokens]: all batch rows together; [C]: columns of a chunk; [chunks] in the order of
/// the sequences.
template <class T>
struct ChunkWork : HeadsAtWork {
  const TokenRange* chunks;     ///< [chunk_count]
  const TokenRange* sequences;  ///< [sequence_count]
  const PieceRange* chunks_of;  ///< [sequence_count]
  int chunk_count, sequence_count, token_count, C;
  T *q, *k;              ///< [tokens][heads / group][K], normalised
  T* read;               ///< [tokens][heads][K] erase k, what predictions read the state along; null: k
  T* beta;               ///< [tokens][heads]; 1 where there are gates
  T *G, *tail;           ///< [tokens][heads][K]; tail null: G_n - G_i
  T *w, *qg, *kg;        ///< [tokens][heads][K]
  T *u, *v_new;          ///< [tokens][heads][V]
  T *Aqk, *L, *Akk_inv;  ///< [tokens][heads][C]
  T* h;                  ///< [chunks][heads][K][V]
  T* exact_h;            ///< the same, not rounded; null: nobody asks
};

/// One chunk of one head, as most kernels see it.
template <class T>
struct DeviceChunk {
  std::size_t token;  ///< the first
  int rows, local, head;
  int heads, query, queries;  ///< query heads are counted among those at work

  __device__ DeviceChunk(const ChunkWork<T>& work, TokenRange tokens, int local_head)
      : token(tokens.first),
        rows(static_cast<int>(tokens.count)),
        local(local_head),
        head(work.first_head + local_head),
        heads(work.heads),
        query(local_head / work.group),
        queries(work.heads / work.group) {}
  __device__ DeviceChunk(const ChunkWork<T>& work, unsigned chunk, unsigned local_head)
      : DeviceChunk(work, work.chunks[chunk], static_cast<int>(local_head)) {}
  /// Chunk `index` of a sequence.
  __device__ DeviceChunk(const ChunkWork<T>& work, TokenRange sequence, unsigned index, int local_head)
      : DeviceChunk(
            work,
            {sequence.first + index * static_cast<unsigned>(work.C),
             min(static_cast<unsigned>(work.C), sequence.count - index * static_cast<unsigned>(work.C))},
            local_head) {}

  /// Row `at` of an array of [tokens][heads][width].
  template <class Element>
  __device__ Element* row(Element* array, int at, int width) const {
    return array + ((token + at) * heads + local) * width;
  }
  /// ... of [tokens][heads / group][width].
  template <class Element>
  __device__ Element* query_row(Element* array, int at, int width) const {
    return array + ((token + at) * queries + query) * width;
  }
  /// Between two of its rows.
  __device__ std::size_t stride(int width) const { return std::size_t(heads) * width; }
  /// Row `at` of what predictions read the state along.
  __device__ const T* read_row(const ChunkWork<T>& work, int at, int K) const {
    return work.read == nullptr ? query_row(work.k, at, K) : row(work.read, at, K);
  }
  /// Row `at` of this head in a tensor of the problem, [tokens][HV].
  __device__ std::size_t stored(const DeviceProblem& p, int at) const { return p.at(token + at, p.HV, head); }
};

/// Bytes of shared memory that the greediest of the kernels needs at least.
template <class T>
std::size_t chunk_shared_bytes(int K);  // state.cuh

// prepare.cu
template <class T>
void launch_chunk_prepare(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work);
// scores.cu. `decay`: anchor_pair, anchor_first or anchor_mid.
template <class T>
void launch_chunk_scores(bool is_fused, kda::DecayForm decay, const DeviceProblem& p,
                         const ChunkWork<T>& work);
template <class T>
std::size_t scores_shared_bytes();
// inverse.cu
template <class T>
void launch_chunk_inverse(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work);
// operands.cu
template <class T>
void launch_chunk_operands(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work);
// state.cuh
template <class T>
void launch_chunk_state(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work);
// output.cu
template <class T>
void launch_chunk_output(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work);

}  // namespace kda_check::cuda
