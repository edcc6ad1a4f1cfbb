// What a run of chunks does to the state, S -> M S + A: M, from the identity, M = T M with
// T = diag(e^Gn) - kg^T w of one chunk after the other; of the state's gradient T = diag(e^Gn) - w^T kg, from
// the last chunk on. A block has 64 columns of M, of one part and head.
#include "chunk.cuh"
#include "segments.cuh"
#include "tile.cuh"

namespace kda_check::cuda {

namespace {

/// M as the product reads it [K][64], then tiles of the factors of T, kg and w or the other way round, and of
/// T.
template <class T>
struct Shared {
  T *M, *left, *transition, *right;
  __device__ Shared(void* memory, int K) {
    M = static_cast<T*>(memory);
    left = M + K * tile_side;
    transition = left + tile_side * tile_stride<T>;
    right = transition + tile_side * tile_stride<T>;
  }
  static std::size_t bytes(int K) {
    return sizeof(T) * (K * tile_side + 2 * tile_side * tile_stride<T> + tile_side * tile_side);
  }
};

template <class T, bool is_fused>
class Transitions {
 public:
  __device__ Transitions(const DeviceProblem& p, const ChunkWork<T>& work, bool from_the_end,
                         Shared<T> shared, T* M)
      : p_(p),
        work_(work),
        from_the_end_(from_the_end),
        shared_(shared),
        key_tiles_(tiles_of(p.K)),
        part_(static_cast<int>(blockIdx.x) / key_tiles_),
        local_(static_cast<int>(blockIdx.y)),
        first_column_(static_cast<int>(blockIdx.x) % key_tiles_ * tile_side),
        columns_(min(tile_side, p.K - first_column_)),
        M_(M + (std::size_t(part_) * work.heads + local_) * p.K * p.K + first_column_) {}

  __device__ void run() {
    over_elements([&](int k, int c) { M_[std::size_t(k) * p_.K + c] = T(k == first_column_ + c ? 1 : 0); });
    const PieceRange chunks = work_.chunks_of[part_];
    for (std::uint32_t n = 0; n < chunks.count; ++n) {
      const std::uint32_t index = from_the_end_ ? chunks.count - 1 - n : n;
      const DeviceChunk<T> chunk(work_, chunks.first + index, static_cast<unsigned>(local_));
      __syncthreads();  // M is written, and nobody reads what it was
      over_elements([&](int k, int c) { shared_.M[k * tile_side + c] = M_[std::size_t(k) * p_.K + c]; });
      for (int tile = 0; tile < key_tiles_; ++tile) multiply_rows(chunk, tile);
    }
  }

 private:
  template <class Body>
  __device__ void over_elements(Body body) const {
    for (int e = threadIdx.x; e < p_.K * tile_side; e += tile_threads)
      if (e % tile_side < columns_) body(e / tile_side, e % tile_side);
  }

  /// 64 rows of T M.
  __device__ void multiply_rows(const DeviceChunk<T>& chunk, int tile) const {
    TileSums<T> sums = {};
    for (int inner = 0; inner < key_tiles_; ++inner) {
      __syncthreads();  // nobody reads the tiles of before
      if (inner == 0) fetch(shared_.left, tile_stride<T>, from_the_end_ ? work_.w : work_.kg, chunk, tile);
      fetch(shared_.right, tile_side, from_the_end_ ? work_.kg : work_.w, chunk, inner);
      __pipeline_commit();
      __pipeline_wait_prior(0);
      __syncthreads();
      form_transition(chunk, tile, inner);
      __syncthreads();
      add_product<is_fused>(sums, shared_.transition, tile_stride<T>,
                            shared_.M + inner * tile_side * tile_side, tile_side,
                            min(tile_side, p_.K - inner * tile_side));
    }
    round_all(p_.casts.transition, sums);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int k = tile * tile_side + place_.row(r), column = place_.column + c;
        if (k < p_.K && column < columns_) M_[std::size_t(k) * p_.K + column] = sums[r][c];
      }
  }

  __device__ void fetch(T* to, int row, T* array, const DeviceChunk<T>& chunk, int tile) const {
    const int first = tile * tile_side;
    copy_tile_async(to, row, TileSource<T>{chunk.row(array, 0, p_.K) + first, chunk.stride(p_.K), p_.K},
                    chunk.rows, min(tile_side, p_.K - first));
  }

  /// A tile of T.
  __device__ void form_transition(const DeviceChunk<T>& chunk, int tile, int inner) const {
    TileSums<T> sums = {};
    add_transposed_product<is_fused>(sums, shared_.left, tile_stride<T>, shared_.right, tile_side,
                                     chunk.rows);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int k = tile * tile_side + place_.transposed_row(r), j = inner * tile_side + place_.column + c;
        sums[r][c] = (k == j && k < p_.K ? decay(chunk, k) : T(0)) - sums[r][c];
      }
    round_all(p_.casts.transition, sums);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        shared_.transition[place_.transposed_row(r) * tile_stride<T> + place_.column + c] = sums[r][c];
  }
  /// e^Gn
  __device__ T decay(const DeviceChunk<T>& chunk, int k) const {
    return kda::rounded(p_.casts.decay,
                        exponential(p_.exponential, chunk.row(work_.G, chunk.rows - 1, p_.K)[k]));
  }

  const DeviceProblem& p_;
  const ChunkWork<T>& work_;
  const bool from_the_end_;
  const Shared<T> shared_;
  const int key_tiles_, part_, local_, first_column_, columns_;
  T* const M_;  ///< this block's columns
  const TilePlace place_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(tile_threads)
    transitions_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ ChunkWork<T> work,
                       bool from_the_end, T* M) {
  extern __shared__ __align__(16) unsigned char memory[];
  Transitions<T, is_fused>(p, work, from_the_end, Shared<T>(memory, p.K), M).run();
}

}  // namespace

template <class T>
void launch_transitions(bool is_fused, bool from_the_end, const DeviceProblem& p, const ChunkWork<T>& work,
                        T* M) {
  launch("gpu-chunk, transitions", is_fused ? transitions_kernel<T, true> : transitions_kernel<T, false>,
         dim3(tiles_of(p.K) * work.sequence_count, work.heads), tile_threads, Shared<T>::bytes(p.K), p, work,
         from_the_end, M);
}

template void launch_transitions(bool, bool, const DeviceProblem&, const ChunkWork<float>&, float*);
template void launch_transitions(bool, bool, const DeviceProblem&, const ChunkWork<double>&, double*);

}  // namespace kda_check::cuda
