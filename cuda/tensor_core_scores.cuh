// Scores of a chunk on tensor cores (F2, F3): factored tiles of 16 x 16 in tf32; in diagonal blocks, where
// the decay asks for it, by pairs.
#pragma once

#include "tensor_core_inputs.cuh"

namespace kda_check::cuda {

constexpr int score_rows = 16;
/// Of a diagonal block, whose scores by pairs a warp computes together.
constexpr int columns_of_group = 4;

#ifdef KDA_CHECK_SM90

template <DType dtype, int width>
class ChunkScores : public ChunkInputs<dtype, width> {
 public:
  using Inputs = ChunkInputs<dtype, width>;
  using Inputs::Inputs;
  using typename Inputs::Image, typename Inputs::Words;

 protected:
  using Inputs::chunk_, Inputs::lane_, Inputs::p_, Inputs::s_, Inputs::warp_, Inputs::work_;
  using Inputs::G, Inputs::pair;

  __device__ void store_score(int i, int j, float score) const {
    s_.image.Aqk[Image::template at<image_rows>(i, j)] = static_cast<std::uint16_t>(Words::of(score, 0.0f));
  }

  /// Every warp a tile of 16 x 16 scores; by pairs those off the diagonal, then four columns of a diagonal
  /// block after the other, those with most rows first.
  template <bool by_pairs>
  __device__ void scores() {
    constexpr int tiles = by_pairs ? lower_blocks - blocks_of_chunk : lower_blocks;
    if (warp_ < tiles) {
      int i = by_pairs ? 1 : 0, before = 0;
      while (before + (by_pairs ? i : i + 1) <= warp_) before += by_pairs ? i : i + 1, ++i;
      score_tile(i, warp_ - before);
    }
    if constexpr (by_pairs)
      while (true) {
        int next = 0;
        if (lane_ == 0) next = atomicAdd(&s_.next_group, 1);
        next = __shfl_sync(whole_warp, next, 0);
        if (next >= image_rows / columns_of_group) return;
        score_group_by_pairs(next % blocks_of_chunk, next / blocks_of_chunk * columns_of_group);
      }
  }

  __device__ void score_tile(int i, int j) const {
    const int g = lane_ / 4, t = lane_ % 4, top = score_rows * i, left = score_rows * j;
    const bool is_diagonal = i == j;
    const int there = min(score_rows, chunk_.rows - top);
    const int anchor =
        is_diagonal && work_.decay == DecayForm::anchor_mid ? top + max(min(8, there - 1), 0) : top;
    float of_q[2][4]{}, of_k[2][4]{};
    const float q_norm[] = {s_.q_norm[top + g], s_.q_norm[top + g + 8]},
                k_norm[] = {s_.k_norm[top + g], s_.k_norm[top + g + 8]},
                column_norm[] = {s_.k_norm[left + g], s_.k_norm[left + g + 8]};
#pragma unroll 4
    for (int first = 0; first < width; first += 8) {
      const int k = first + 2 * t;
      const float2 a = G(anchor, k);
      float2 q_left[2], k_left[2], right[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 g_left = G(top + g + 8 * half, k), g_right = G(left + g + 8 * half, k);
        const std::uint32_t q = pair(s_.image.q_start, top + g + 8 * half, k),
                            key = pair(s_.image.k_start, top + g + 8 * half, k),
                            column = pair(s_.image.k_start, left + g + 8 * half, k);
        const float2 decay{ex2_ftz(g_left.x - a.x), ex2_ftz(g_left.y - a.y)};
        q_left[half] = {Words::first(q) * q_norm[half] * decay.x, Words::second(q) * q_norm[half] * decay.y};
        k_left[half] = {Words::first(key) * k_norm[half] * decay.x,
                        Words::second(key) * k_norm[half] * decay.y};
        right[half] = {Words::first(column) * column_norm[half] * ex2_ftz(a.x - g_right.x),
                       Words::second(column) * column_norm[half] * ex2_ftz(a.y - g_right.y)};
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        multiply_8(of_q[n], q_left[0], q_left[1], right[n].x, right[n].y);
        multiply_8(of_k[n], k_left[0], k_left[1], right[n].x, right[n].y);
      }
    }
    float* const L = lower_block(s_.L, i, j);
    const float scale = static_cast<float>(p_.scale);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half, column = 8 * n + 2 * t;
        const float beta = s_.image.beta[top + row];
        float2 score{scale * of_q[n][2 * half], scale * of_q[n][2 * half + 1]},
            lower{beta * of_k[n][2 * half], beta * of_k[n][2 * half + 1]};
        if (is_diagonal) {
          if (column > row) score.x = 0.0f;
          if (column + 1 > row) score.y = 0.0f;
          if (column >= row) lower.x = 0.0f;
          if (column + 1 >= row) lower.y = 0.0f;
        }
        // Beyond the last row: what is infinite there must not meet the zeros of others.
        if (top + row >= chunk_.rows) score = lower = float2{0.0f, 0.0f};
        *reinterpret_cast<float2*>(L + row * block_row + column) = lower;
        *reinterpret_cast<std::uint32_t*>(s_.image.Aqk +
                                          Image::template at<image_rows>(top + row, left + column)) =
            Words::of(score.x, score.y);
      }
  }

  /// Scores of a diagonal block's rows against some of its columns: tree:32 over K. A lane has every 32nd
  /// channel; the sums of a row are added up together, until every one is that of four lanes.
  __device__ void score_group_by_pairs(int block, int first_column) const {
    const int top = score_rows * block;
    constexpr int mine = width / warp_lanes, columns = columns_of_group;
    float keys[columns][mine], G_columns[columns][mine];
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      const int row = top + first_column + j;
      const float norm = s_.k_norm[row];
#pragma unroll
      for (int m = 0; m < mine; ++m) {
        const int channel = lane_ + m * warp_lanes;
        keys[j][m] = Words::first(s_.image.k_start[Image::template at<width>(row, channel)]) * norm;
        G_columns[j][m] = s_.G[row][channel];
      }
    }
    float* const L = lower_block(s_.L, block, block);
    const float scale = static_cast<float>(p_.scale);
    // Lane 16 a + 8 b + 4 c and the three behind it end with column 2 b + c, a: of k.
    static_assert(columns == 4);
    const int column = first_column + lane_ / 4 % columns;
    const bool writes = lane_ % 4 == 0, is_of_q = lane_ < 16;
    const auto hand_out = [&](int row, float sum) {
      if (!writes) return;
      if (is_of_q)
        store_score(top + row, top + column, column <= row ? scale * sum : 0.0f);
      else
        L[row * block_row + column] = column < row ? sum : 0.0f;
    };
    for (int row = 0; row < first_column; ++row) hand_out(row, 0.0f);
#pragma unroll 2
    for (int row = first_column; row < score_rows; ++row) {
      const int i = top + row;
      const float beta = s_.image.beta[i], q_norm = s_.q_norm[i], k_norm = s_.k_norm[i];
      float sums[2 * columns]{};
#pragma unroll
      for (int m = 0; m < mine; ++m) {
        const int channel = lane_ + m * warp_lanes, at = Image::template at<width>(i, channel);
        const float q = Words::first(s_.image.q_start[at]) * q_norm,
                    k = Words::first(s_.image.k_start[at]) * k_norm * beta, G_row = s_.G[i][channel];
#pragma unroll
        for (int j = 0; j < columns; ++j) {
          const float decayed = keys[j][m] * ex2_ftz(G_row - G_columns[j][m]);
          sums[j] = fmaf(q, decayed, sums[j]);
          sums[j + columns] = fmaf(k, decayed, sums[j + columns]);
        }
      }
      // Lanes whose number has a bit keep the upper half of the sums that are left, the others the lower.
#pragma unroll
      for (int kept = columns, half = warp_lanes / 2; kept > 0; half /= 2, kept /= 2)
#pragma unroll
        for (int n = 0; n < kept; ++n) {
          const bool is_upper = lane_ & half;
          const float own = is_upper ? sums[n + kept] : sums[n], given = is_upper ? sums[n] : sums[n + kept];
          sums[n] = own + __shfl_xor_sync(whole_warp, given, half);
        }
      sums[0] = sums[0] + __shfl_xor_sync(whole_warp, sums[0], 2);
      hand_out(row, sums[0] + __shfl_xor_sync(whole_warp, sums[0], 1));
    }
  }
};

#endif

}  // namespace kda_check::cuda
