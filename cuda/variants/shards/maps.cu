// What a run of chunks does to the state, S -> M S + A: M, from the identity, M = T M with
// T = diag(e^Gn) - kg^T w of one chunk after the other; of the state's gradient T = diag(e^Gn) - w^T kg, from
// the last chunk on. All T are formed first, side by side. Then a block has 64 columns of M, of one part and
// head, and carries them through its chunks.
#include "cuda/variants/chunk/columns.cuh"
#include "cuda/variants/shards/segments.cuh"

namespace kda_check::cuda {

namespace {

/// A tile of T, of one chunk and head.
template <class T, bool is_fused>
__global__ void __launch_bounds__(tile_threads)
    transitions_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ ChunkWork<T> work,
                       bool from_the_end, T* transitions) {
  extern __shared__ __align__(16) unsigned char memory[];
  TilePair<T>& staged = *reinterpret_cast<TilePair<T>*>(memory);
  const int tiles = tiles_of(p.K), tile = static_cast<int>(blockIdx.x) % (tiles * tiles);
  const int first_row = tile / tiles * tile_side, first_column = tile % tiles * tile_side;
  const unsigned index = blockIdx.x / static_cast<unsigned>(tiles * tiles);
  const DeviceChunk<T> chunk(work, index, blockIdx.y);
  const auto fetch = [&](T* to, int stride, T* array, int first) {
    copy_tile_async(to, stride, TileSource<T>{chunk.row(array, 0, p.K) + first, chunk.stride(p.K), p.K},
                    chunk.rows, min(tile_side, p.K - first));
  };
  fetch(staged.left[0], tile_stride<T>, from_the_end ? work.w : work.kg, first_row);
  fetch(staged.right[0], tile_side, from_the_end ? work.kg : work.w, first_column);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  TileSums<T> sums = {};
  add_transposed_product<is_fused>(sums, staged.left[0], tile_stride<T>, staged.right[0], tile_side,
                                   chunk.rows);
  const T* const last_G = chunk.row(work.G, chunk.rows - 1, p.K);
  const TilePlace place;
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int k = first_row + place.transposed_row(r), j = first_column + place.column + c;
      const T decay =
          k == j && k < p.K ? kda::rounded(p.casts.decay, exponential(p.exponential, last_G[k])) : T(0);
      sums[r][c] = decay - sums[r][c];
    }
  round_all(p.casts.transition, sums);
  T* const to = transitions + (std::size_t{index} * work.heads + blockIdx.y) * p.K * p.K;
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int k = first_row + place.transposed_row(r), j = first_column + place.column + c;
      if (k < p.K && j < p.K) to[std::size_t(k) * p.K + j] = sums[r][c];
    }
}

template <class T, bool is_fused, int groups>
class Chain {
 public:
  __device__ Chain(const DeviceProblem& p, const ChunkWork<T>& work, bool from_the_end, Shared<T> shared,
                   const T* transitions)
      : p_(p),
        work_(work),
        from_the_end_(from_the_end),
        shared_(shared),
        transitions_(transitions),
        key_tiles_(tiles_of(p.K)),
        part_(static_cast<int>(blockIdx.x) / key_tiles_),
        first_column_(static_cast<int>(blockIdx.x) % key_tiles_ * tile_side),
        columns_(min(tile_side, p.K - first_column_)),
        chunks_(work.chunks_of[part_]) {}

  __device__ void run(T* M) {
    over_elements([&](T& m, int k, int c) { m = T(k == first_column_ + c ? 1 : 0); });
    const int ahead = shared_.ring_tiles - 1;
    for (int s = 0; s < ahead; ++s) fetch(s);
    int step = 0;
    for (std::uint32_t n = 0; n < chunks_.count; ++n) multiply(step);
    __pipeline_wait_prior(0);
    __syncthreads();
    T* const to = M + (std::size_t(part_) * work_.heads + blockIdx.y) * p_.K * p_.K + first_column_;
    over_elements([&](T& m, int k, int c) {
      if (c < columns_) to[std::size_t(k) * p_.K + c] = m;
    });
  }

 private:
  /// Of M in shared memory.
  template <class Body>
  __device__ void over_elements(Body body) const {
    for (int e = threadIdx.x; e < p_.K * tile_side; e += tile_threads)
      body(shared_.carried[e], e / tile_side, e % tile_side);
  }

  /// M = T M of one chunk, from tile `step` on.
  __device__ void multiply(int& step) const {
    const TilePlace place;
    TileSums<T> M[groups];
#pragma unroll
    for (int group = 0; group < groups; ++group) {
      if (group >= key_tiles_) break;
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) M[group][r][c] = T(0);
      for (int inner = 0; inner < key_tiles_; ++inner, ++step) {
        arrive(step);
        add_product<is_fused>(M[group], shared_.tile(step), tile_stride<T>,
                              shared_.carried + inner * tile_side * tile_side, tile_side,
                              min(tile_side, p_.K - inner * tile_side));
      }
      round_all(p_.casts.transition, M[group]);
    }
    __syncthreads();  // nobody reads what M was
#pragma unroll
    for (int group = 0; group < groups; ++group)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int k = group * tile_side + place.row(r);
        if (k >= p_.K) continue;
#pragma unroll
        for (int c = 0; c < 4; ++c) shared_.carried[k * tile_side + place.column + c] = M[group][r][c];
      }
  }

  /// Tile `step` of the stream of T, row of tiles by row of tiles, into the ring.
  __device__ void fetch(int step) const {
    const int of_chunk = key_tiles_ * key_tiles_, tile = step % of_chunk;
    const auto n = static_cast<std::uint32_t>(step / of_chunk);
    if (n < chunks_.count) {
      const std::size_t chunk = chunks_.first + (from_the_end_ ? chunks_.count - 1 - n : n);
      const int row = tile / key_tiles_ * tile_side, column = tile % key_tiles_ * tile_side;
      const T* const from = transitions_ + (chunk * work_.heads + blockIdx.y) * p_.K * p_.K;
      copy_tile_async(shared_.tile(step), tile_stride<T>,
                      TileSource<T>{from + std::size_t(row) * p_.K + column, std::size_t(p_.K), p_.K},
                      min(tile_side, p_.K - row), min(tile_side, p_.K - column));
    }
    __pipeline_commit();  // one group for each step, so that waiting can count them
  }
  /// Waits for tile `step`; behind the barrier nobody reads the tile before it any more.
  __device__ void arrive(int step) const {
    const int ahead = shared_.ring_tiles - 1;
    __pipeline_wait_prior(ahead - 1);
    __syncthreads();
    fetch(step + ahead);
  }

  const DeviceProblem& p_;
  const ChunkWork<T>& work_;
  const bool from_the_end_;
  const Shared<T> shared_;
  const T* const transitions_;
  const int key_tiles_, part_, first_column_, columns_;
  const PieceRange chunks_;
};

template <class T, bool is_fused, int groups>
__global__ void __launch_bounds__(tile_threads)
    chain_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ ChunkWork<T> work,
                 bool from_the_end, int ring_tiles, const T* transitions, T* M) {
  extern __shared__ __align__(16) unsigned char memory[];
  Chain<T, is_fused, groups>(p, work, from_the_end, Shared<T>(memory, p.K, ring_tiles), transitions).run(M);
}

template <class T, bool is_fused>
struct ChainKernels {
  template <int groups>
  auto of() const {
    return chain_kernel<T, is_fused, groups>;
  }
};

template <class T, bool is_fused>
void launch_both(bool from_the_end, const DeviceProblem& p, const ChunkWork<T>& work, T* transitions, T* M) {
  const int tiles = tiles_of(p.K), ring_tiles = Shared<T>::tiles_that_fit(p.K);
  launch("gpu-chunk, transitions", transitions_kernel<T, is_fused>,
         dim3(static_cast<unsigned>(work.chunk_count * tiles * tiles), work.heads), tile_threads,
         sizeof(TilePair<T>), p, work, from_the_end, transitions);
  launch("gpu-chunk, products of transitions",
         kernel_for_groups<T, is_fused>(p.K, ChainKernels<T, is_fused>()),
         dim3(tiles * work.sequence_count, work.heads), tile_threads, Shared<T>::bytes(p.K, ring_tiles), p,
         work, from_the_end, ring_tiles, transitions, M);
}

}  // namespace

template <class T>
void launch_transitions(bool is_fused, bool from_the_end, const DeviceProblem& p, const ChunkWork<T>& work,
                        T* transitions, T* M) {
  (is_fused ? launch_both<T, true> : launch_both<T, false>)(from_the_end, p, work, transitions, M);
}

template void launch_transitions(bool, bool, const DeviceProblem&, const ChunkWork<float>&, float*, float*);
template void launch_transitions(bool, bool, const DeviceProblem&, const ChunkWork<double>&, double*,
                                 double*);

}  // namespace kda_check::cuda
