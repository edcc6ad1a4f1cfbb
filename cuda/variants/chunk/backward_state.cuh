// The gradient of the state from chunk to chunk, the last first (B2): dh = D, dv = dv_local + kg dh,
// D = diag(e^Gn) dh + scale qg^T do - w^T dv (columns.cuh); beside it the state itself.
//
// Included by a file for each type that is computed in: these kernels take the compiler longest.
#pragma once

#include "cuda/variants/chunk/backward.cuh"
#include "cuda/variants/chunk/state.cuh"

namespace kda_check::cuda {

namespace {

template <class T, bool is_fused, int groups>
class StateGradientPass : public ColumnPass<StateGradientPass<T, is_fused, groups>, T, is_fused, groups> {
  using Base = ColumnPass<StateGradientPass, T, is_fused, groups>;
  using Base::casts_, Base::p_, Base::S_, Base::shared_;

 public:
  static constexpr bool from_the_end = true;
  __device__ StateGradientPass(const DeviceProblem& p, const ChunkBackwardWork<T>& work, Shared<T> shared,
                               const ColumnBlock& block)
      : Base(p, work.forward, shared, block), backward_(work) {}

  __device__ void run() {
    this->load_carried(p_.state_gradient);
    this->over_chunks();
    this->store_carried(p_.gradients[static_cast<int>(kda::Gradient::dinitial_state)]);
  }

  __device__ const T* first() const { return backward_.forward.kg; }
  __device__ const T* second() const { return backward_.forward.w; }
  __device__ const T* given() const { return backward_.dv_local; }
  __device__ T* rows() const { return backward_.dv; }
  __device__ T* operand() const { return backward_.dh; }
  __device__ T* exact() const { return backward_.exact_dh; }
  __device__ kda::Rounding rounding() const { return casts_.dh; }

  /// dv = kg dh + dv_local
  __device__ void finish_rows(TileSums<T>& sums, const TileSums<T>& dv_local) const {
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[r][c] = sums[r][c] + dv_local[r][c];
    round_all(casts_.dv, sums);
  }
  /// D = D diag(e^Gn) + (scale qg^T do - w^T dv)
  __device__ void add_chunk(int group, const T (&decay)[4], const T* w, const DeviceChunk<T>& chunk,
                            std::uint32_t index) {
    TileSums<T> by_value = {};
    add_transposed_product<is_fused>(by_value, w, tile_stride<T>, shared_.rows, tile_side, chunk.rows);
    const T* const by_output = backward_.by_output + this->state_of(index);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (!this->is_inside(group, r, c)) continue;
        const T through_output =
            by_output[std::size_t(this->key_of(group, r)) * p_.V + this->first_column_ + this->column_of(c)];
        S_[group][r][c] = multiply_add<is_fused>(
            S_[group][r][c], decay[r], multiply_add<is_fused>(T(p_.scale), through_output, -by_value[r][c]));
      }
  }

 private:
  const ChunkBackwardWork<T>& backward_;
};

/// Both passes: neither needs the other. Two blocks share a multiprocessor where there is room, so that one
/// of them works while the other waits.
template <class T, bool is_fused, int groups>
__global__ void __launch_bounds__(tile_threads, groups <= 2 && sizeof(T) == sizeof(float) ? 2 : 1)
    states_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ ChunkBackwardWork<T> work,
                  int ring_tiles) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Shared<T> shared(memory, p.K, ring_tiles);
  if (blockIdx.z == 0) {
    StatePass<T, is_fused, groups>(p, work.forward, shared, ColumnBlock(p)).run();
  } else {
    StateGradientPass<T, is_fused, groups>(p, work, shared, ColumnBlock(p)).run();
  }
}

template <class T, bool is_fused>
struct BothStateKernels {
  template <int groups>
  auto of() const {
    return states_kernel<T, is_fused, groups>;
  }
};

template <class T, bool is_fused>
void launch_groups(const DeviceProblem& p, const ChunkBackwardWork<T>& work) {
  const int ring_tiles = Shared<T>::tiles_that_fit(p.K);
  launch("gpu-chunk backwards, states", kernel_for_groups<T, is_fused>(p.K, BothStateKernels<T, is_fused>()),
         dim3(tiles_of(p.V) * work.sequence_count, work.heads, 2), tile_threads,
         Shared<T>::bytes(p.K, ring_tiles), p, work, ring_tiles);
}

}  // namespace

template <class T>
void launch_chunk_backward_states(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work) {
  is_fused ? launch_groups<T, true>(p, work) : launch_groups<T, false>(p, work);
}

}  // namespace kda_check::cuda
