// Scores of a chunk on tensor cores (F2, F3): factored tiles of 16 x 16 in tf32; in diagonal blocks, where
// the decay asks for it, by pairs.
#pragma once

#include "tensor_core_inputs.cuh"

namespace kda_check::cuda {

constexpr int score_rows = 16;
/// Of a diagonal block, whose scores by pairs a warp computes together.
constexpr int rows_of_group = 4;

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

  /// Every warp a tile of 16 x 16 scores; by pairs those off the diagonal, then four rows of a diagonal block
  /// after the other, those with most columns first.
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
        if (next >= image_rows / rows_of_group) return;
        score_group_by_pairs(next % blocks_of_chunk,
                             score_rows - (next / blocks_of_chunk + 1) * rows_of_group);
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
    // Rows top + g and + 8 at 0 and 1, with channels 2 t and + 1; the next eight channels at 2 and 3.
    const auto load_keys = [this](std::uint32_t(&x)[4], const std::uint16_t* keys, int first_row, int k) {
      const int row = first_row + lane_ % 16, column = k + lane_ / 16 * 8;
      load_matrices(x, shared_address(keys + Image::template at<width>(row, column)));
    };
    const auto load_gates = [&](int row, int k, float(&x)[4]) {
      const float4 four =
          *reinterpret_cast<const float4*>(s_.G + PrepareShared<width>::row_word(row, k + 4 * t));
      x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    };
#pragma unroll 4
    for (int first = 0; first < width; first += 16) {
      std::uint32_t q[4], key[4], column[4];
      load_keys(q, s_.image.q_start, top, first), load_keys(key, s_.image.k_start, top, first);
      load_keys(column, s_.image.k_start, left, first);
      float a[4], q_left[2][4], k_left[2][4], right[2][4];
      load_gates(anchor, first, a);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float g_left[4], g_right[4];
        load_gates(top + g + 8 * half, first, g_left), load_gates(left + g + 8 * half, first, g_right);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const auto element = [&](const std::uint32_t(&x)[4]) {
            const std::uint32_t pair = x[half + e / 2 * 2];
            return e % 2 == 0 ? Words::first(pair) : Words::second(pair);
          };
          const float decay = ex2_ftz(g_left[e] - a[e]);
          q_left[half][e] = element(q) * q_norm[half] * decay;
          k_left[half][e] = element(key) * k_norm[half] * decay;
          right[half][e] = element(column) * column_norm[half] * ex2_ftz(a[e] - g_right[e]);
        }
      }
#pragma unroll
      for (int e = 0; e < 4; e += 2)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const auto two = [e](const float(&x)[4]) { return float2{x[e], x[e + 1]}; };
          multiply_8(of_q[n], two(q_left[0]), two(q_left[1]), right[n][e], right[n][e + 1]);
          multiply_8(of_k[n], two(k_left[0]), two(k_left[1]), right[n][e], right[n][e + 1]);
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

  /// Scores of some rows of a diagonal block: tree:32 over K. A lane has every 32nd channel; the sums of a
  /// column are added up together, until every one is that of four lanes.
  __device__ void score_group_by_pairs(int block, int first_row) const {
    const int top = score_rows * block;
    constexpr int mine = width / warp_lanes, rows = rows_of_group;
    float q[rows][mine], keys[rows][mine], G_rows[rows][mine];
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const int row = top + first_row + i;
      const float beta = s_.image.beta[row], q_norm = s_.q_norm[row], k_norm = s_.k_norm[row];
#pragma unroll
      for (int m = 0; m < mine; ++m) {
        const int channel = lane_ + m * warp_lanes, at = Image::template at<width>(row, channel);
        q[i][m] = Words::first(s_.image.q_start[at]) * q_norm;
        keys[i][m] = Words::first(s_.image.k_start[at]) * k_norm * beta;
        G_rows[i][m] = s_.G[PrepareShared<width>::gate_at(row, channel)];
      }
    }
    float* const L = lower_block(s_.L, block, block);
    const float scale = static_cast<float>(p_.scale);
    // Lane 16 a + 8 b + 4 c and the three behind it end with row 2 b + c, a: of k.
    static_assert(rows == 4);
    const int row = first_row + lane_ / 4 % rows;
    const bool writes = lane_ % 4 == 0, is_of_q = lane_ < 16;
    const auto hand_out = [&](int column, float sum) {
      if (!writes) return;
      if (is_of_q)
        store_score(top + row, top + column, column <= row ? scale * sum : 0.0f);
      else
        L[row * block_row + column] = column < row ? sum : 0.0f;
    };
#pragma unroll 2
    for (int column = 0; column < first_row + rows; ++column) {
      const int j = top + column;
      const float norm = s_.k_norm[j];
      const int first = lane_ ^ (j & 7) * 8;
      const std::uint16_t* const k_of_lanes = s_.image.k_start + j * width;
      const float* const G_of_lanes = s_.G + PrepareShared<width>::gate_at(j, lane_);
      float sums[2 * rows]{};
#pragma unroll
      for (int m = 0; m < mine; ++m) {
        // Channel lane + 32 m, in either array; lane < 32.
        const std::uint16_t of_lane = k_of_lanes[(first ^ m % 2 * warp_lanes) + m / 2 * 2 * warp_lanes];
        const float key = Words::first(of_lane) * norm, G_column = G_of_lanes[m * warp_lanes];
#pragma unroll
        for (int i = 0; i < rows; ++i) {
          const float decayed = key * ex2_ftz(G_rows[i][m] - G_column);
          sums[i] = fmaf(q[i][m], decayed, sums[i]);
          sums[i + rows] = fmaf(keys[i][m], decayed, sums[i + rows]);
        }
      }
      // Lanes whose number has a bit keep the upper half of the sums that are left, the others the lower.
#pragma unroll
      for (int kept = rows, half = warp_lanes / 2; kept > 0; half /= 2, kept /= 2)
#pragma unroll
        for (int n = 0; n < kept; ++n) {
          const bool is_upper = lane_ & half;
          const float own = is_upper ? sums[n + kept] : sums[n], given = is_upper ? sums[n] : sums[n + kept];
          sums[n] = own + __shfl_xor_sync(whole_warp, given, half);
        }
      sums[0] = sums[0] + __shfl_xor_sync(whole_warp, sums[0], 2);
      hand_out(column, sums[0] + __shfl_xor_sync(whole_warp, sums[0], 1));
    }
    for (int column = first_row + rows; column < score_rows; ++column) hand_out(column, 0.0f);
  }
};

#endif

}  // namespace kda_check::cuda
