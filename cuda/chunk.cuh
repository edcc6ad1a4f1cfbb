// The chunk form on the GPU: where its stages are, and the kernels in the order they run (F1 to F11 of
// docs/kda.md, "Stages"). Every stage is written to memory, so every one can be looked at.
#pragma once

#include "launch.cuh"

namespace kda_check::cuda {

/// Rows of a sub-block: what shares an anchor, and the side of the inverse's diagonal blocks.
constexpr int block_rows = 16;
/// The longest chunk, and the side of the tiles that products are computed in.
constexpr int most_rows = 64;

/// Chunks [first, first + count) of a sequence.
struct ChunkRange {
  std::uint32_t first, count;
};

/// [tokens]: all batch rows together; [C]: columns of a chunk; [chunks] in the order of the sequences.
template <class T>
struct ChunkWork {
  const TokenRange* chunks;     ///< [chunk_count]
  const TokenRange* sequences;  ///< [sequence_count]
  const ChunkRange* chunks_of;  ///< [sequence_count]
  int chunk_count, sequence_count, token_count, C;
  T *q, *k;              ///< [tokens][H][K], normalised
  T* beta;               ///< [tokens][HV]
  T *G, *tail;           ///< [tokens][HV][K]; tail null: G_n - G_i
  T *w, *qg, *kg;        ///< [tokens][HV][K]
  T *u, *v_new;          ///< [tokens][HV][V]
  T *Aqk, *L, *Akk_inv;  ///< [tokens][HV][C]
  T* h;                  ///< [chunks][HV][K][V]
};

/// One chunk of one head, as most kernels see it.
template <class T>
struct DeviceChunk {
  std::size_t token;  ///< the first
  int rows, head, query_head;

  __device__ DeviceChunk(const DeviceProblem& p, const ChunkWork<T>& work, unsigned chunk,
                         unsigned value_head)
      : token(work.chunks[chunk].first),
        rows(static_cast<int>(work.chunks[chunk].count)),
        head(static_cast<int>(value_head)),
        query_head(p.query_head(static_cast<int>(value_head))) {}
  /// Chunk `index` of a sequence.
  __device__ DeviceChunk(const DeviceProblem& p, int C, TokenRange sequence, unsigned index, int value_head)
      : token(std::size_t{sequence.first} + index * static_cast<unsigned>(C)),
        rows(min(C, static_cast<int>(sequence.count - index * static_cast<unsigned>(C)))),
        head(value_head),
        query_head(p.query_head(value_head)) {}

  /// Row `row` of an array of [tokens][heads][width].
  template <class Element>
  __device__ Element* row(Element* array, int at, int heads, int of_head, int width) const {
    return array + ((token + at) * heads + of_head) * width;
  }
};

/// Bytes of shared memory that the greediest of the kernels needs at least.
template <class T>
std::size_t chunk_shared_bytes(int K);  // chunk_state.cuh

// chunk_prepare.cu
template <class T>
void launch_chunk_prepare(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work);
// chunk_scores.cu. `decay`: anchor_pair, anchor_first or anchor_mid.
template <class T>
void launch_chunk_scores(bool is_fused, kda::DecayForm decay, const DeviceProblem& p,
                         const ChunkWork<T>& work);
template <class T>
std::size_t scores_shared_bytes();
// chunk_inverse.cu
template <class T>
void launch_chunk_inverse(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work);
// chunk_operands.cu
template <class T>
void launch_chunk_operands(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work);
// chunk_state.cuh
template <class T>
void launch_chunk_state(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work);
// chunk_output.cu
template <class T>
void launch_chunk_output(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work);

}  // namespace kda_check::cuda
