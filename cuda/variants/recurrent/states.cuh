// States of gpu-recurrent in fp32 on their way from memory and back: a block moves its columns together,
// sixteen bytes a thread and in the order of memory, and its warps exchange them in shared memory.
#pragma once

#include <cuda_pipeline_primitives.h>

#include "cuda/variants/recurrent/tokens.cuh"

namespace kda_check::cuda {

namespace {

/// `tiles` times block_columns columns of a state, as they lie in memory: K = 32 `rows` rows of so many, or
/// so many columns of K rows. Sixteen bytes of a row are exchanged with others of it, so that eight lanes
/// with neighbouring rows meet no bank twice.
template <int rows, int tiles>
class PassingColumns {
 public:
  static constexpr int elements = tiles * block_columns * rows * warp_lanes;

  __device__ PassingColumns(const DeviceProblem& p, std::size_t state, int first_column, float* shared)
      : p_(p), state_(state), first_column_(first_column), shared_(shared) {}

  /// Sends for them; __pipeline_wait_prior and a barrier say when they are here.
  __device__ void send_for() const {
    const auto* const memory = static_cast<const float*>(p_.initial_state.data);
    over_fours([&](std::size_t from, float4& to) { __pipeline_memcpy_async(&to, memory + from, sizeof to); });
    __pipeline_commit();
  }
  /// S[c][r]: row l + 32 r of column c of this warp in a column tile.
  __device__ void take(int tile, float (&S)[warp_columns][rows]) const {
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (p_.state_v_first) {
#pragma unroll
        for (int c = 0; c < warp_columns; ++c) S[c][r] = in_column(tile, c, r);
      } else {
        const float4 four = in_row(k_of(r), tile * block_warps + warp());
        S[0][r] = four.x, S[1][r] = four.y, S[2][r] = four.z, S[3][r] = four.w;
      }
  }
  __device__ void put(int tile, const float (&S)[warp_columns][rows]) const {
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (p_.state_v_first) {
#pragma unroll
        for (int c = 0; c < warp_columns; ++c) in_column(tile, c, r) = S[c][r];
      } else {
        in_row(k_of(r), tile * block_warps + warp()) = {S[0][r], S[1][r], S[2][r], S[3][r]};
      }
  }
  /// Behind a barrier. Nobody reads them soon.
  __device__ void send_back() const {
    auto* const memory = static_cast<float*>(p_.final_state.data);
    over_fours(
        [&](std::size_t to, const float4& from) { __stcs(reinterpret_cast<float4*>(memory + to), from); });
  }

 private:
  static_assert(warp_columns == 4 && block_warps == 8);
  static constexpr int fours = tiles * block_warps;  ///< of a row

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / warp_lanes; }
  __device__ static int k_of(int r) { return static_cast<int>(threadIdx.x) % warp_lanes + r * warp_lanes; }
  __device__ float4& in_row(int k, int four) const {
    return reinterpret_cast<float4*>(shared_)[k * fours + (four ^ (k % block_warps))];
  }
  __device__ float& in_column(int tile, int c, int r) const {
    return shared_[(tile * block_columns + warp() * warp_columns + c) * rows * warp_lanes + k_of(r)];
  }
  /// Calls body(place in memory, place in shared memory) with all that this thread moves.
  template <class Body>
  __device__ void over_fours(Body body) const {
#pragma unroll
    for (int i = 0; i < rows * tiles; ++i) {
      const int at = i * block_warps * warp_lanes + static_cast<int>(threadIdx.x);
      const int k = at / fours, four = at % fours;
      if (p_.state_v_first)
        body(state_element(p_, state_, 0, first_column_) + warp_columns * at,
             reinterpret_cast<float4*>(shared_)[at]);
      else
        body(state_element(p_, state_, k, first_column_ + warp_columns * four), in_row(k, four));
    }
  }

  const DeviceProblem& p_;
  const std::size_t state_;
  const int first_column_;
  float* const shared_;
};

}  // namespace

}  // namespace kda_check::cuda
