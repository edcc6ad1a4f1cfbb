// The state from chunk to chunk (F8, F9, F11): h = S, v_new = u - w h, S = diag(e^Gn) S + kg^T v_new
// (columns.cuh).
//
// Included by a file for each type that is computed in: these kernels take the compiler longest.
#pragma once

#include "cuda/variants/chunk/columns.cuh"

namespace kda_check::cuda {

namespace {

template <class T, bool is_fused, int groups>
class StatePass : public ColumnPass<StatePass<T, is_fused, groups>, T, is_fused, groups> {
  using Base = ColumnPass<StatePass, T, is_fused, groups>;
  using Base::casts_, Base::p_, Base::S_, Base::shared_, Base::work_;

 public:
  static constexpr bool from_the_end = false;
  using Base::Base;

  __device__ void run() {
    this->load_carried(p_.initial_state);
    this->over_chunks();
    this->store_carried(p_.final_state);
  }

  __device__ const T* first() const { return work_.w; }
  __device__ const T* second() const { return work_.kg; }
  __device__ const T* given() const { return work_.u; }
  __device__ T* rows() const { return work_.v_new; }
  __device__ T* operand() const { return work_.h; }
  __device__ T* exact() const { return work_.exact_h; }
  __device__ kda::Rounding rounding() const { return casts_.state; }

  /// v_new = u - w h
  __device__ void finish_rows(TileSums<T>& sums, const TileSums<T>& u) const {
    round_all(casts_.prediction, sums);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[r][c] = u[r][c] - sums[r][c];
    round_all(casts_.v_new, sums);
  }
  /// S = diag(e^Gn) S + kg^T v_new
  __device__ void add_chunk(int group, const T (&decay)[4], const T* kg, const DeviceChunk<T>& chunk,
                            std::uint32_t) {
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) S_[group][r][c] = S_[group][r][c] * decay[r];
    add_transposed_product<is_fused>(S_[group], kg, tile_stride<T>, shared_.rows, tile_side, chunk.rows);
  }
};

template <class T, bool is_fused, int groups>
__global__ void __launch_bounds__(tile_threads)
    state_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ ChunkWork<T> work,
                 int ring_tiles) {
  extern __shared__ __align__(16) unsigned char memory[];
  StatePass<T, is_fused, groups>(p, work, Shared<T>(memory, p.K, ring_tiles), ColumnBlock(p)).run();
}

template <class T, bool is_fused>
struct StateKernels {
  template <int groups>
  auto of() const {
    return state_kernel<T, is_fused, groups>;
  }
};

template <class T, bool is_fused>
void launch_groups(const DeviceProblem& p, const ChunkWork<T>& work) {
  const int ring_tiles = Shared<T>::tiles_that_fit(p.K);
  launch("gpu-chunk, state", kernel_for_groups<T, is_fused>(p.K, StateKernels<T, is_fused>()),
         dim3(tiles_of(p.V) * work.sequence_count, work.heads), tile_threads,
         Shared<T>::bytes(p.K, ring_tiles), p, work, ring_tiles);
}

}  // namespace

template <class T>
void launch_chunk_state(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work) {
  is_fused ? launch_groups<T, true>(p, work) : launch_groups<T, false>(p, work);
}

template <class T>
std::size_t chunk_shared_bytes(int K) {
  return std::max(Shared<T>::bytes(K, least_ring_tiles), scores_shared_bytes<T>());
}

}  // namespace kda_check::cuda
