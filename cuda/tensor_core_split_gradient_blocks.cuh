// Backwards on tensor cores in fp32, what stays within a chunk (B4 of docs/kda.md, "Chunk backward"):
// products between blocks of 16 rows; in diagonal blocks, where the decay asks for it, pair by pair.
#pragma once

#include "tensor_core_split_gradient_scores.cuh"

namespace kda_check::cuda {

#ifdef KDA_CHECK_SM90

template <int width, bool by_pairs, bool tells>
class SplitGradientBlocks : public SplitGradientScores<width, by_pairs, tells> {
 public:
  using Scores = SplitGradientScores<width, by_pairs, tells>;
  using Scores::Scores;

 protected:
  using Scores::at, Scores::pair, Scores::exponential_of;
  using Scores::blocks_, Scores::chunk_, Scores::lane_, Scores::s_, Scores::thread_, Scores::warp_,
      Scores::work_;

  /// dqi, row and column of 16-row blocks. A warp has eight channels of the rows, or of the columns.
  __device__ void block_sums() const {
    constexpr int tiles = width / 8;
    static_assert(2 * tiles % split_gradient_warps == 0);
#pragma unroll 1
    for (int item = warp_; item < 2 * tiles; item += split_gradient_warps)
      item < tiles ? rows(item * 8) : columns((item - tiles) * 8);
    __syncthreads();
  }

  /// ... with what the pairs of diagonal blocks add, and what comes of them: to dbeta, dq, dk and dG. A
  /// thread has a channel of a block.
  __device__ void finish_blocks() const {
    const int k = thread_ % width, block = thread_ / width, top = 16 * block;
    if (block < blocks_) {
      const int count = min(16, chunk_.rows - top);
      float of_beta[16];
      if constexpr (by_pairs) add_pairs(block, k, count);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        of_beta[i] = 0.0f;
        if (i >= count) continue;
        const int place = PrepareShared<width>::gate_at(top + i, k);
        const float dq = s_.sums[0][place], row = s_.sums[1][place], column = s_.sums[2][place],
                    key = s_.k[place], by_row = s_.beta[top + i] * row;
        of_beta[i] = fmaf(row, key, 0.0f);
        s_.sums[1][place] = by_row + column;
        s_.sums[2][place] = fmaf(s_.q[place], dq, key * (by_row - column));
      }
      // Lanes whose number has a bit keep the upper half of the rows that are left, the others the lower.
#pragma unroll
      for (int step = 0; step < 4; ++step)
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const int kept = 8 >> step;
          if (n >= kept) break;
          const bool is_upper = lane_ & 2 * kept;
          const float own = is_upper ? of_beta[n + kept] : of_beta[n],
                      given = is_upper ? of_beta[n] : of_beta[n + kept];
          of_beta[n] = own + __shfl_xor_sync(whole_warp, given, 2 * kept);
        }
      const float sum = of_beta[0] + __shfl_xor_sync(whole_warp, of_beta[0], 1);
      if (lane_ % 2 == 0) s_.of_keys[top + lane_ / 2][k / warp_lanes] = sum;
    }
    __syncthreads();
    if (thread_ >= chunk_.rows) return;
    constexpr int groups = width / warp_lanes;
    const auto& x = s_.of_keys[thread_];
    const float of_keys = groups == 4 ? (x[0] + x[2 % groups]) + (x[1] + x[3 % groups]) : x[0] + x[1];
    work_.dbeta[work_.row(chunk_.token + thread_, chunk_.local)] = s_.of_errors[thread_] + of_keys;
  }

 private:
  using Product = float[1][4];  ///< 16 rows, eight channels
  using Sums = SplitSums<1>;
  using Right = std::uint32_t[1][parts_of_number][2];
  static constexpr int blocks = blocks_of_chunk;

  /// Row of the anchor of a diagonal block.
  __device__ int diagonal_anchor(int block) const {
    const int top = 16 * block;
    return work_.decay == DecayForm::anchor_mid ? top + min(8, chunk_.rows - top - 1) : top;
  }
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
      const float own = at(s_.G, row, k);
      const float decayed = number(row) * exponential_of(from_anchor ? anchor - own : own - anchor);
      x[e] = row < chunk_.rows ? decayed : 0.0f;
    }
    split({x[0], x[1]}, b[0], 0), split({x[2], x[3]}, b[0], 1);
  }
  /// sum += x exp(..) of two rows of the products' result; exponent(row, channel).
  template <class Exponent>
  __device__ void add_scaled(float (&sum)[4], const Product& x, int block, int channel,
                             Exponent exponent) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 to_anchor = exponent(16 * block + lane_ / 4 + 8 * half, channel + 2 * (lane_ % 4));
      sum[2 * half] = sum[2 * half] + x[0][2 * half] * exponential_of(to_anchor.x);
      sum[2 * half + 1] = sum[2 * half + 1] + x[0][2 * half + 1] * exponential_of(to_anchor.y);
    }
  }
  __device__ void store_sums(float* to, int block, int channel, const float (&x)[4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      pair(to, 16 * block + lane_ / 4 + 8 * half, channel + 2 * (lane_ % 4)) = {x[2 * half], x[2 * half + 1]};
  }

  /// dqi and row: of every block of rows from the columns left of it, and, if not by pairs, from its own.
  __device__ void rows(int channel) const {
    const int k = channel + lane_ / 4;
    const auto key = [&](int row) { return at(s_.k, row, k); };
#pragma unroll 1
    for (int I = 0; I < blocks_; ++I) {
      float dq[4]{}, row[4]{};
      const auto add = [&](int first, int last, int anchor) {
        Sums of_q, of_k;
        const float a = at(s_.G, anchor, k);
#pragma unroll 1
        for (int J = first; J < last; ++J) {
          Right x;
          decayed(J, k, a, true, key, x);
          SplitLeftFactor left;
          load_scores<false>(s_.dAqk, I, J, left);
          of_q.template add<false, 0>(left, x);
          load_scores<false>(s_.dAkk, I, J, left);
          of_k.template add<false, 0>(left, x);
        }
        const auto exponent = [&](int i, int channel) {
          const float2 own = pair(s_.G, i, channel), of_anchor = pair(s_.G, anchor, channel);
          return float2{own.x - of_anchor.x, own.y - of_anchor.y};
        };
        Product sum;
        of_q.finish(sum), add_scaled(dq, sum, I, channel, exponent);
        of_k.finish(sum), add_scaled(row, sum, I, channel, exponent);
      };
      if (I > 0) add(0, I, 16 * I);
      if constexpr (!by_pairs) add(I, I + 1, diagonal_anchor(I));
      store_sums(s_.sums[0], I, channel, dq), store_sums(s_.sums[1], I, channel, row);
    }
  }

  /// column: of every block of columns from the rows below it, and, if not by pairs, from its own.
  __device__ void columns(int channel) const {
    const int k = channel + lane_ / 4;
    const auto query = [&](int row) { return at(s_.q, row, k); };
    const auto beta_key = [&](int row) { return at(s_.k, row, k) * s_.beta[row]; };
#pragma unroll 1
    for (int J = 0; J < blocks_; ++J) {
      float column[4]{};
      const auto add = [&](int first, int last, int anchor) {
        const float a = at(s_.G, anchor, k);
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
        multiply(s_.dAqk, query, of_q);
        of_q.finish(of_k.high);
        multiply(s_.dAkk, beta_key, of_k);
        Product sum;
        of_k.finish(sum);
        add_scaled(column, sum, J, channel, [&](int j, int channel) {
          const float2 own = pair(s_.G, j, channel), of_anchor = pair(s_.G, anchor, channel);
          return float2{of_anchor.x - own.x, of_anchor.y - own.y};
        });
      };
      if (J + 1 < blocks_) add(J + 1, blocks_, 16 * J + 15);
      if constexpr (!by_pairs) add(J, J + 1, diagonal_anchor(J));
      store_sums(s_.sums[2], J, channel, column);
    }
  }

  /// One exponential for each row i and column j < i of a diagonal block; every sum from its first term on,
  /// then added to what is there.
  __device__ void add_pairs(int block, int k, int count) const {
    const int top = 16 * block, diagonal = lower_number(block, block) * split_block_words;
    const auto *const dAqk = reinterpret_cast<const float*>(s_.dAqk + diagonal),
                      *const dAkk = reinterpret_cast<const float*>(s_.dAkk + diagonal);
    float gates[16], keys[16], by_query[16]{}, by_key[16]{};
#pragma unroll
    for (int i = 0; i < 16; ++i) gates[i] = at(s_.G, top + i, k), keys[i] = at(s_.k, top + i, k);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (i >= count) break;
      const float q = at(s_.q, top + i, k), beta_key = keys[i] * s_.beta[top + i];
      float dq = 0.0f, row = 0.0f;
#pragma unroll
      for (int first = 0; first <= i; first += 4) {
        const float4 of_q = *reinterpret_cast<const float4*>(dAqk + i * block_row + first),
                     of_k = *reinterpret_cast<const float4*>(dAkk + i * block_row + first);
        const float q_scores[] = {of_q.x, of_q.y, of_q.z, of_q.w},
                    k_scores[] = {of_k.x, of_k.y, of_k.z, of_k.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int j = first + e;
          if (j > i) break;
          const float decay = j == i ? 1.0f : exponential_of(gates[i] - gates[j]), left = keys[j] * decay;
          dq = fmaf(q_scores[e], left, dq);
          by_query[j] = fmaf(q_scores[e], q * decay, by_query[j]);
          if (j == i) break;
          row = fmaf(k_scores[e], left, row);
          by_key[j] = fmaf(k_scores[e], beta_key * decay, by_key[j]);
        }
      }
      float &of_q = at(s_.sums[0], top + i, k), &of_row = at(s_.sums[1], top + i, k);
      of_q = of_q + dq, of_row = of_row + row;
    }
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      float& of_column = at(s_.sums[2], top + j, k);
      of_column = of_column + by_query[j] + by_key[j];
    }
  }
};

#endif

}  // namespace kda_check::cuda
