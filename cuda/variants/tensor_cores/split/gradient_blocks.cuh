// Backwards on tensor cores in fp32, what stays within a chunk (B4 of docs/kda.md, "Chunk backward"):
// products between blocks of 16 rows; in diagonal blocks, where the decay asks for it, pair by pair.
#pragma once

#include "cuda/variants/tensor_cores/gradient_sums.cuh"
#include "cuda/variants/tensor_cores/split/gradient_scores.cuh"

namespace kda_check::cuda {

#ifdef KDA_CHECK_SM90

template <int width, bool by_pairs, bool tells>
class SplitGradientBlocks : public GradientSums<SplitGradientScores<width, by_pairs, tells>, by_pairs> {
 public:
  using Base = GradientSums<SplitGradientScores<width, by_pairs, tells>, by_pairs>;
  using Base::Base;

 protected:
  using Base::add_scaled, Base::diagonal_anchor, Base::exponential_of, Base::store_sums;
  using Base::blocks_, Base::chunk_, Base::lane_, Base::s_, Base::warp_;
  using Base::G, Base::gates, Base::key, Base::query;

  /// dqi, row and column of 16-row blocks. A warp has eight channels of the rows, or of the columns.
  __device__ void block_sums() const {
    constexpr int tiles = width / 8;
    static_assert(2 * tiles % gradient_warps == 0);
#pragma unroll 1
    for (int item = warp_; item < 2 * tiles; item += gradient_warps)
      item < tiles ? rows(item * 8) : columns((item - tiles) * 8);
    __syncthreads();
  }

 private:
  using Product = float[1][4];  ///< 16 rows, eight channels
  using Sums = SplitSums<1>;
  using Right = std::uint32_t[1][parts_of_number][2];
  static constexpr int blocks = blocks_of_chunk;

  /// Scores as left factor, or, `transposed`, their rows as columns.
  template <bool transposed>
  __device__ void load_scores(std::uint32_t* of, int I, int J, SplitLeftFactor& a) const {
    load_left<transposed>(a, of + lower_number(I, J) * split_block_words, lane_);
  }

  /// Of a channel and 16 rows, 2 (l mod 4), + 1, + 8 and + 9: numbers that decay from, or to, an anchor, as
  /// right factor. Rows beyond the last are nothing.
  template <class Number>
  __device__ void decayed(int block, int k, float anchor, bool from_anchor, Number number, Right& b) const {
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = 16 * block + 2 * (lane_ % 4) + e % 2 + e / 2 * 8;
      const float own = G(row, k);
      const float decayed = number(row) * exponential_of(from_anchor ? anchor - own : own - anchor);
      x[e] = row < chunk_.rows ? decayed : 0.0f;
    }
    split({x[0], x[1]}, b[0], 0), split({x[2], x[3]}, b[0], 1);
  }

  /// dqi and row: of every block of rows from the columns left of it, and, if not by pairs, from its own.
  __device__ void rows(int channel) const {
    const int k = channel + lane_ / 4;
    const auto key_of = [&](int row) { return key(row, k); };
#pragma unroll 1
    for (int I = 0; I < blocks_; ++I) {
      float dq[4]{}, row[4]{};
      const auto add = [&](int first, int last, int anchor) {
        Sums of_q, of_k;
        const float a = G(anchor, k);
#pragma unroll 1
        for (int J = first; J < last; ++J) {
          Right x;
          decayed(J, k, a, true, key_of, x);
          SplitLeftFactor left;
          load_scores<false>(s_.dAqk, I, J, left);
          of_q.template add<false, 0>(left, x);
          load_scores<false>(s_.dAkk, I, J, left);
          of_k.template add<false, 0>(left, x);
        }
        const auto exponent = [&](int i, int channel) {
          const float2 own = gates(i, channel), of_anchor = gates(anchor, channel);
          return float2{own.x - of_anchor.x, own.y - of_anchor.y};
        };
        Product sum;
        of_q.finish(sum), add_scaled(dq, sum[0], I, channel, exponent);
        of_k.finish(sum), add_scaled(row, sum[0], I, channel, exponent);
      };
      if (I > 0) add(0, I, 16 * I);
      if constexpr (!by_pairs) add(I, I + 1, diagonal_anchor(I));
      store_sums(s_.sums[0], I, channel, dq), store_sums(s_.sums[1], I, channel, row);
    }
  }

  /// column: of every block of columns from the rows below it, and, if not by pairs, from its own.
  __device__ void columns(int channel) const {
    const int k = channel + lane_ / 4;
    const auto query_of = [&](int row) { return query(row, k); };
    const auto beta_key = [&](int row) { return key(row, k) * s_.beta[row]; };
#pragma unroll 1
    for (int J = 0; J < blocks_; ++J) {
      float column[4]{};
      const auto add = [&](int first, int last, int anchor) {
        const float a = G(anchor, k);
        const auto multiply = [&](std::uint32_t* of, auto number, Sums& sums) {
#pragma unroll 1
          for (int I = first; I < last; ++I) {
            Right x;
            decayed(I, k, a, false, number, x);
            SplitLeftFactor left;
            load_scores<true>(of, I, J, left);
            sums.template add<false, 0>(left, x);
          }
        };
        Sums of_q, of_k;
        multiply(s_.dAqk, query_of, of_q);
        of_q.finish(of_k.high);
        multiply(s_.dAkk, beta_key, of_k);
        Product sum;
        of_k.finish(sum);
        add_scaled(column, sum[0], J, channel, [&](int j, int channel) {
          const float2 own = gates(j, channel), of_anchor = gates(anchor, channel);
          return float2{of_anchor.x - own.x, of_anchor.y - own.y};
        });
      };
      if (J + 1 < blocks_) add(J + 1, blocks_, 16 * J + 15);
      if constexpr (!by_pairs) add(J, J + 1, diagonal_anchor(J));
      store_sums(s_.sums[2], J, channel, column);
    }
  }
};

#endif

}  // namespace kda_check::cuda
