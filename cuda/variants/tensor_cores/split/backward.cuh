// gpu-chunk on tensor cores in fp32, backwards: the steps of variants/tensor_cores/backward.cuh with split
// operands, and what is left between the kernels.
#pragma once

#include "cuda/variants/tensor_cores/backward.cuh"
#include "cuda/variants/tensor_cores/split/split.cuh"

namespace kda_check::cuda {

// Arrays between kernels are fp32 numbers in blocks of 16 x 16: of each the upper eight rows and then the
// lower ones, 16 bytes a lane, which has BlockNumbers of it. Blocks of the same rows follow each other.
//
//   h, dh                [chunks][heads][width / 16][blocks of V]  row k, column v
//   e, v_new, do, dv, r  [chunks][heads][4][blocks of V]           row i, column v
//   ends                 [chunks][heads][4][width / 16]            row i, column k
//
// Beyond K, V and the chunk are zeros; in ends ones.

constexpr int numbers_of_block = 16 * 16;
/// Blocks of 16 columns of V.
__host__ __device__ constexpr int value_blocks(int V) { return (V + 15) / 16; }
/// Numbers of a state, and of the values of a chunk.
constexpr std::size_t state_numbers(int V, int width) {
  return std::size_t(width / 16) * value_blocks(V) * numbers_of_block;
}
constexpr std::size_t value_numbers(int V) {
  return std::size_t(blocks_of_chunk) * value_blocks(V) * numbers_of_block;
}

/// TensorCoreWork::split is there, left.q_norm and k_norm too.
struct SplitBackwardWork : TensorCoreWork {
  float *d_o, *dh, *dv;         ///< of the leaving state, of v_new
  float* r;                     ///< the inverse, transposed, times dv: beta r is the gradient of v
  float *dq, *dk, *dg, *dbeta;  ///< as in TensorCoreBackwardWork
  TensorCoreGradientStages gradient_stages;

  /// Where those of a chunk of a head begin in an array whose chunks have `numbers` numbers.
  __host__ __device__ std::size_t place(std::size_t chunk, int local, std::size_t numbers) const {
    return (chunk * heads + local) * numbers;
  }
};

#ifdef KDA_CHECK_SM90

/// What a lane has of eight rows and 16 columns, turned: `low` of column l / 4, rows 2 (l mod 4) and + 1,
/// `high` of the column eight behind. Into half a block of an array.
__device__ inline void leave_turned(float* half, int lane, float2 low, float2 high) {
  const int g = lane / 4, t = lane % 4;
  const bool is_odd = g % 2 != 0;
  // Neighbouring columns have a row each in the end.
  const float other_low = __shfl_xor_sync(whole_warp, is_odd ? low.x : low.y, 4),
              other_high = __shfl_xor_sync(whole_warp, is_odd ? high.x : high.y, 4);
  const float4 x =
      is_odd ? float4{other_low, low.y, other_high, high.y} : float4{low.x, other_low, high.x, other_high};
  reinterpret_cast<float4*>(half)[(2 * t + (is_odd ? 1 : 0)) * 4 + g / 2] = x;
}
__device__ inline float4 load_half(const float* block, int half, int lane) {
  return reinterpret_cast<const float4*>(block)[half * warp_lanes + lane];
}
/// Half a block as right factor: eight columns.
__device__ inline void as_right(float4 x, std::uint32_t (&b)[parts_of_number][2]) {
  split({x.x, x.y}, b, 0), split({x.z, x.w}, b, 1);
}
__device__ inline void as_left(float4 upper, float4 lower, SplitLeftFactor& a) {
  split({upper.x, upper.y}, a, 0), split({lower.x, lower.y}, a, 1);
  split({upper.z, upper.w}, a, 2), split({lower.z, lower.w}, a, 3);
}

#endif

// state_gradient.cu. Stores the gradients of v and of the initial state, too.
void launch_split_state_gradient(const DeviceProblem& p, const SplitBackwardWork& work);
// gradients.cu
void launch_split_gradients(const DeviceProblem& p, const SplitBackwardWork& work);
// dw.cu, of either operands.
void launch_tensor_core_dw(const DeviceProblem& p, const TensorCoreBackwardWork& work);
void launch_split_dw(const DeviceProblem& p, const SplitBackwardWork& work);

}  // namespace kda_check::cuda
