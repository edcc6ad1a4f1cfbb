// Scores of a diagonal block of a chunk by pairs: an exponential for each two rows and channel (F2, F3).
#pragma once

#include "cuda/variants/tensor_cores/chunk.cuh"
#include "cuda/variants/tensor_cores/inverse.cuh"

namespace kda_check::cuda {

constexpr int score_rows = 16;
/// Of a diagonal block, whose scores by pairs a warp computes together.
constexpr int rows_of_group = 4;

#ifdef KDA_CHECK_SM90

/// Scores of some rows of a diagonal block: tree:32 over K. A lane has every 32nd channel, number m of which
/// `of` tells, a functor for each row (q, k times beta, G) and for each column (k, G), in registers of their
/// own. The sums of a column are added up together, until every one is that of four lanes. They are handed
/// out by row and column of the block, with whether they count: left of the diagonal, those of q also on it.
template <int width, class Rows>
__device__ void score_group_by_pairs(const Rows& of, int block, int first_row, int lane) {
  const int top = score_rows * block;
  constexpr int mine = width / warp_lanes, rows = rows_of_group;
  float q[rows][mine], keys[rows][mine], G_rows[rows][mine];
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const auto row = of.row(top + first_row + i);
#pragma unroll
    for (int m = 0; m < mine; ++m) {
      const float3 x = row(m);
      q[i][m] = x.x, keys[i][m] = x.y, G_rows[i][m] = x.z;
    }
  }
  // Lane 16 a + 8 b + 4 c and the three behind it end with row 2 b + c, a: of k.
  static_assert(rows == 4);
  const int row = first_row + lane / 4 % rows;
  const bool writes = lane % 4 == 0, is_of_q = lane < 16;
  const auto hand_out = [&](int column, float sum) {
    if (!writes) return;
    if (is_of_q)
      of.store_q(block, row, column, sum, column <= row);
    else
      of.store_k(block, row, column, sum, column < row);
  };
#pragma unroll 2
  for (int column = 0; column < first_row + rows; ++column) {
    const auto of_column = of.column(top + column);
    float sums[2 * rows]{};
#pragma unroll
    for (int m = 0; m < mine; ++m) {
      const float2 x = of_column(m);
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const float decayed = x.x * of.decay(G_rows[i][m] - x.y);
        sums[i] = fmaf(q[i][m], decayed, sums[i]);
        sums[i + rows] = fmaf(keys[i][m], decayed, sums[i + rows]);
      }
    }
    // Lanes whose number has a bit keep the upper half of the sums that are left, the others the lower.
#pragma unroll
    for (int kept = rows, half = warp_lanes / 2; kept > 0; half /= 2, kept /= 2)
#pragma unroll
      for (int n = 0; n < kept; ++n) {
        const bool is_upper = lane & half;
        const float own = is_upper ? sums[n + kept] : sums[n], given = is_upper ? sums[n] : sums[n + kept];
        sums[n] = own + __shfl_xor_sync(whole_warp, given, half);
      }
    sums[0] = sums[0] + __shfl_xor_sync(whole_warp, sums[0], 2);
    hand_out(column, sums[0] + __shfl_xor_sync(whole_warp, sums[0], 1));
  }
  for (int column = first_row + rows; column < score_rows; ++column) hand_out(column, 0.0f);
}

/// Groups of rows of a chunk's diagonal blocks, one after the other, those with most columns first: by whole
/// warps, each of which takes the next one of `next`.
template <int width, class Rows>
__device__ void score_groups_by_pairs(const Rows& of, int* next, int lane) {
  while (true) {
    int group = 0;
    if (lane == 0) group = atomicAdd(next, 1);
    group = __shfl_sync(whole_warp, group, 0);
    if (group >= image_rows / rows_of_group) return;
    score_group_by_pairs<width>(of, group % blocks_of_chunk,
                                score_rows - (group / blocks_of_chunk + 1) * rows_of_group, lane);
  }
}

#endif

}  // namespace kda_check::cuda
