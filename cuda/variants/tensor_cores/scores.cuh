// Scores of a chunk on tensor cores (F2, F3): factored tiles of 16 x 16 in tf32; in diagonal blocks, where
// the decay asks for it, by pairs.
#pragma once

#include "cuda/variants/tensor_cores/inputs.cuh"
#include "cuda/variants/tensor_cores/pairs.cuh"

namespace kda_check::cuda {

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
    if constexpr (by_pairs) score_groups_by_pairs<width>(RowsByPairs{*this}, &s_.next_group, lane_);
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

  /// What scores by pairs are made of.
  struct RowsByPairs {
    const ChunkScores& chunk;

    __device__ auto row(int row) const {
      const auto& s = chunk.s_;
      const float beta = s.image.beta[row], q_norm = s.q_norm[row], k_norm = s.k_norm[row];
      return [=, &s, lane = chunk.lane_](int m) {
        const int channel = lane + m * warp_lanes, at = Image::template at<width>(row, channel);
        return float3{Words::first(s.image.q_start[at]) * q_norm,
                      Words::first(s.image.k_start[at]) * k_norm * beta,
                      s.G[PrepareShared<width>::gate_at(row, channel)]};
      };
    }
    __device__ auto column(int j) const {
      const auto& s = chunk.s_;
      const int first = chunk.lane_ ^ (j & 7) * 8;
      return [=, norm = s.k_norm[j], keys = s.image.k_start + j * width,
              G = s.G + PrepareShared<width>::gate_at(j, chunk.lane_)](int m) {
        // Channel lane + 32 m, in either array; lane < 32.
        const std::uint16_t key = keys[(first ^ m % 2 * warp_lanes) + m / 2 * 2 * warp_lanes];
        return float2{Words::first(key) * norm, G[m * warp_lanes]};
      };
    }
    static __device__ float decay(float x) { return ex2_ftz(x); }
    __device__ void store_q(int block, int row, int column, float sum, bool counts) const {
      const int top = score_rows * block;
      chunk.store_score(top + row, top + column, counts ? static_cast<float>(chunk.p_.scale) * sum : 0.0f);
    }
    __device__ void store_k(int block, int row, int column, float sum, bool counts) const {
      lower_block(chunk.s_.L, block, block)[row * block_row + column] = counts ? sum : 0.0f;
    }
  };
};

#endif

}  // namespace kda_check::cuda
