// (I + L)^-1 of a chunk on tensor cores: elimination in blocks of 16 rows, merged by products in tf32
// (docs/kda.md, "Inverse formulations"; docs/arithmetic.md, "inverse").
#pragma once

#include "cuda/arithmetic/arithmetic.cuh"
#include "cuda/variants/tensor_cores/instructions.cuh"

namespace kda_check::cuda {

/// Between rows of a block of 16 x 16 in shared memory: fragments are read from different banks.
constexpr int block_row = 20, block_words = 16 * block_row;
constexpr int blocks_of_chunk = 4, lower_blocks = blocks_of_chunk * (blocks_of_chunk + 1) / 2;
/// Threads that invert.
constexpr int inverting_threads = 4 * warp_lanes;

/// Block (i, j), j <= i, of a lower triangular chunk.
__device__ inline float* lower_block(float* blocks, int i, int j) {
  return blocks + (i * (i + 1) / 2 + j) * block_words;
}

#ifdef KDA_CHECK_SM90

/// Of a product of blocks, as tensor cores have it: lane l rows l / 4 and + 8, columns 8 n + 2 (l mod 4),
/// + 1.
using BlockProduct = float[2][4];

/// sum += left right, both in shared memory.
__device__ inline void multiply_blocks(BlockProduct& sum, const float* left, const float* right, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int first = 0; first < 16; first += 8) {
    const int k = first + 2 * t;
    const float2 upper = *reinterpret_cast<const float2*>(left + g * block_row + k),
                 lower = *reinterpret_cast<const float2*>(left + (g + 8) * block_row + k);
#pragma unroll
    for (int n = 0; n < 2; ++n)
      multiply_8(sum[n], upper, lower, right[k * block_row + 8 * n + g],
                 right[(k + 1) * block_row + 8 * n + g]);
  }
}
/// ... with a product as the left factor.
__device__ inline void multiply_blocks(BlockProduct& sum, const BlockProduct& left, const float* right,
                                       int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float* const row = right + (8 * k + 2 * t) * block_row + g;
#pragma unroll
    for (int n = 0; n < 2; ++n)
      multiply_8(sum[n], {left[k][0], left[k][1]}, {left[k][2], left[k][3]}, row[8 * n],
                 row[block_row + 8 * n]);
  }
}
template <bool negated>
__device__ void store_block(float* to, const BlockProduct& x, int lane) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 pair{x[n][2 * half], x[n][2 * half + 1]};
      *reinterpret_cast<float2*>(to + (lane / 4 + 8 * half) * block_row + 8 * n + 2 * (lane % 4)) =
          negated ? float2{-pair.x, -pair.y} : pair;
    }
}

/// The products that form an inverse, in tf32.
struct Tf32Blocks {
  static constexpr int unrolled = blocks_of_chunk;  ///< of products that follow each other

  template <class Left>
  static __device__ void multiply(BlockProduct& sum, const Left& left, const float* right, int lane) {
    multiply_blocks(sum, left, right, lane);
  }
};

/// A diagonal block in place, a lane for each of its columns: X_ij = -L_ij - L_ij+1 X_j+1,j - ... upwards.
__device__ inline void eliminate_block(float* block, int lane) {
  if (lane >= 16) return;
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float row[16];
#pragma unroll
    for (int m = 0; m < i; m += 4)
      *reinterpret_cast<float4*>(row + m) = *reinterpret_cast<const float4*>(block + i * block_row + m);
    x[i] = i > lane ? -block[i * block_row + lane] : 0.0f;  // rows up to the column's own add zeros
#pragma unroll
    for (int m = 0; m < i; ++m) x[i] = fmaf(-row[m], x[m], x[i]);
  }
  __syncwarp(0xffffu);
#pragma unroll
  for (int i = 0; i < 16; ++i) block[i * block_row + lane] = i == lane ? 1.0f : x[i];
}

/// Where the inverse's block (i, j), j < i, is.
__device__ inline float* merged_block(float* merged, int i, int j) {
  return merged + (i * (i - 1) / 2 + j) * block_words;
}

/// Of the threads that invert.
__device__ inline void inverting_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(inverting_threads) : "memory");
}

/// `blocks`: L, of which the diagonal becomes that of the inverse and the rest is lost; `merged`: six blocks.
/// By four warps. Blocks: how they are multiplied.
template <class Blocks = Tf32Blocks>
__device__ void invert_chunk(float* blocks, float* merged, int warp, int lane) {
  const auto L = [blocks](int i, int j) { return lower_block(blocks, i, j); };
  const auto X = [=](int i, int j) { return i == j ? L(i, i) : merged_block(merged, i, j); };
  eliminate_block(L(warp, warp), lane);
  inverting_barrier();
  if (warp < 3) {
    const int i = warp + 1, j = warp;
    BlockProduct left{}, product{};
    Blocks::multiply(left, X(i, i), L(i, j), lane);
    Blocks::multiply(product, left, X(j, j), lane);
    store_block<true>(X(i, j), product, lane);
  }
  inverting_barrier();
#pragma unroll Blocks::unrolled
  for (int apart = 2; apart < blocks_of_chunk; ++apart) {
    if (warp + apart < blocks_of_chunk) {
      const int i = warp + apart, j = warp;
      BlockProduct sum{}, product{};
#pragma unroll Blocks::unrolled
      for (int n = 0; n < apart; ++n) Blocks::multiply(sum, L(i, j + n), X(j + n, j), lane);
      float* const scratch = warp == 0 ? L(2, 0) : L(1, 0);  // nobody reads these any more
      __syncwarp();
      store_block<false>(scratch, sum, lane);
      __syncwarp();
      Blocks::multiply(product, X(i, i), scratch, lane);
      store_block<true>(X(i, j), product, lane);
    }
    inverting_barrier();
  }
}

#endif

}  // namespace kda_check::cuda
