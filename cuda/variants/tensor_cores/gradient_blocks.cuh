// Backwards on tensor cores, what stays within a chunk (B4 of docs/kda.md, "Chunk backward"): products in
// tf32 between blocks of 16 rows; in diagonal blocks, where the decay asks for it, pair by pair.
#pragma once

#include "cuda/variants/tensor_cores/gradient_scores.cuh"
#include "cuda/variants/tensor_cores/gradient_sums.cuh"

namespace kda_check::cuda {

#ifdef KDA_CHECK_SM90

template <DType dtype, int width, bool by_pairs>
class GradientBlocks : public GradientSums<GradientScores<dtype, width>, by_pairs> {
 public:
  using Base = GradientSums<GradientScores<dtype, width>, by_pairs>;
  using Base::Base;
  using typename Base::Image, typename Base::Words;

 protected:
  using Base::add_scaled, Base::diagonal_anchor, Base::G, Base::gates, Base::store_sums;
  using Base::blocks_, Base::lane_, Base::s_, Base::warp_;

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
  using Shared = GradientShared<width>;
  using Product = float[4];  ///< 16 rows, eight channels
  static constexpr int blocks = blocks_of_chunk;

  /// Of a channel and 16 rows, 2 (l mod 4), + 1, + 8 and + 9: where a lane's factors of a product are.
  using Four = float[4];
  /// Of a channel, from its first rows, whose last three bits are those that a lane has of every block.
  struct Channel {
    const GradientShared<width>& s;
    int low, key_at[2], gate_at[2];

    __device__ Channel(const GradientShared<width>& shared, int lane, int k)
        : s(shared), low(2 * (lane % 4)) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        key_at[e] = Image::template at<width>(low + e, k), gate_at[e] = Shared::at(low + e, k);
    }
    __device__ void gates(Four& x, int block) const {
      each(block, [&](int e, int row) { x[e] = s.G[gate_at[e % 2] + row * width]; });
    }
    __device__ void keys(Four& x, int block) const {
      each(block, [&](int e, int row) {
        x[e] = Words::first(s.k[key_at[e % 2] + row * width]) * s.k_norm[row + low + e % 2];
      });
    }
    __device__ void queries(Four& x, int block) const {
      each(block, [&](int e, int row) {
        x[e] = Words::first(s.q[key_at[e % 2] + row * width]) * s.q_norm[row + low + e % 2];
      });
    }
    __device__ void beta_keys(Four& x, int block) const {
      keys(x, block);
      each(block, [&](int e, int row) { x[e] = x[e] * s.beta[row + low + e % 2]; });
    }

   private:
    template <class Each>
    static __device__ void each(int block, Each each) {
#pragma unroll
      for (int e = 0; e < 4; ++e) each(e, 16 * block + e / 2 * 8);
    }
  };

  /// dqi and row: of every block of rows from the columns left of it, and, if not by pairs, from its own.
  __device__ void rows(int channel) const {
    const int k = channel + lane_ / 4;
    const Channel of(s_, lane_, k);
    Product of_q[blocks - 1]{}, of_k[blocks - 1]{};  // of blocks 1 and on
    float anchors[blocks - 1];
    Four keys, decays, x;
#pragma unroll
    for (int I = 1; I < blocks; ++I) anchors[I - 1] = G(16 * I, k);
#pragma unroll
    for (int J = 0; J + 1 < blocks; ++J) {
      if (J + 1 >= blocks_) break;
      of.keys(keys, J), of.gates(decays, J);
#pragma unroll
      for (int I = J + 1; I < blocks; ++I) {
        if (I >= blocks_) break;
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] = keys[e] * ex2_ftz(anchors[I - 1] - decays[e]);
        multiply_columns(I, J, x, of_q[I - 1], of_k[I - 1]);
      }
    }
#pragma unroll
    for (int I = 0; I < blocks; ++I) {
      if (I >= blocks_) break;
      Product dq{}, row{};
      const auto add = [&](const Product& by_q, const Product& by_k, int anchor) {
        const auto exponent = [&](int i, int channel) {
          const float2 own = gates(i, channel), of_anchor = gates(anchor, channel);
          return float2{own.x - of_anchor.x, own.y - of_anchor.y};
        };
        add_scaled(dq, by_q, I, channel, exponent), add_scaled(row, by_k, I, channel, exponent);
      };
      if (I > 0) add(of_q[I > 0 ? I - 1 : 0], of_k[I > 0 ? I - 1 : 0], 16 * I);
      if constexpr (!by_pairs) {
        const int anchor = diagonal_anchor(I);
        const float a = G(anchor, k);
        Product by_q{}, by_k{};
        of.keys(keys, I), of.gates(decays, I);
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] = keys[e] * ex2_ftz(a - decays[e]);
        multiply_columns(I, I, x, by_q, by_k);
        add(by_q, by_k, anchor);
      }
      store_sums(s_.sums[0], I, channel, dq), store_sums(s_.sums[1], I, channel, row);
    }
  }
  /// += a block of either score times x
  __device__ void multiply_columns(int I, int J, const Four& x, Product& of_q, Product& of_k) const {
    const int at = lane_ / 4 * block_row + 2 * (lane_ % 4);
    const auto multiply = [&](Product& sum, float* scores) {
      const float* const block = lower_block(scores, I, J) + at;
      const auto two = [](const float* of) { return *reinterpret_cast<const float2*>(of); };
#pragma unroll
      for (int half = 0; half < 2; ++half)
        multiply_8(sum, two(block + 8 * half), two(block + 8 * block_row + 8 * half), x[2 * half],
                   x[2 * half + 1]);
    };
    multiply(of_q, s_.late.scores.dAqk), multiply(of_k, s_.late.scores.dAkk);
  }

  /// column: of every block of columns from the rows below it, and, if not by pairs, from its own.
  __device__ void columns(int channel) const {
    const int k = channel + lane_ / 4;
    const Channel of(s_, lane_, k);
    Product sums[blocks - 1]{};
    Four decays[blocks - 1][blocks - 1], rows, x;  // [I - 1][J]
    const auto each_below = [&](auto begin, auto multiply) {
#pragma unroll
      for (int I = 1; I < blocks; ++I) {
        if (I >= blocks_) break;
        begin(I);
#pragma unroll
        for (int J = 0; J < I; ++J) multiply(I, J);
      }
    };
    {
      Four gates;
      float anchors[blocks - 1];
#pragma unroll
      for (int J = 0; J + 1 < blocks; ++J) anchors[J] = G(16 * J + 15, k);
      each_below([&](int I) { of.queries(rows, I), of.gates(gates, I); },
                 [&](int I, int J) {
#pragma unroll
                   for (int e = 0; e < 4; ++e)
                     decays[I - 1][J][e] = ex2_ftz(gates[e] - anchors[J]),
                                x[e] = rows[e] * decays[I - 1][J][e];
                   multiply_rows(s_.late.scores.dAqk, I, J, x, sums[J]);
                 });
    }
    each_below([&](int I) { of.beta_keys(rows, I); },
               [&](int I, int J) {
#pragma unroll
                 for (int e = 0; e < 4; ++e) x[e] = rows[e] * decays[I - 1][J][e];
                 multiply_rows(s_.late.scores.dAkk, I, J, x, sums[J]);
               });
#pragma unroll
    for (int J = 0; J < blocks; ++J) {
      if (J >= blocks_) break;
      Product sum{};
      const auto add = [&](const Product& x, int anchor) {
        add_scaled(sum, x, J, channel, [&](int j, int channel) {
          const float2 own = gates(j, channel), of_anchor = gates(anchor, channel);
          return float2{of_anchor.x - own.x, of_anchor.y - own.y};
        });
      };
      if (J + 1 < blocks_) add(sums[J + 1 < blocks ? J : 0], 16 * J + 15);
      if constexpr (!by_pairs) {
        const int anchor = diagonal_anchor(J);
        const float a = G(anchor, k);
        Product by_block{};
        Four decay;
        of.gates(decay, J), of.queries(rows, J);
#pragma unroll
        for (int e = 0; e < 4; ++e) decay[e] = ex2_ftz(decay[e] - a), x[e] = rows[e] * decay[e];
        multiply_rows(s_.late.scores.dAqk, J, J, x, by_block);
        of.beta_keys(rows, J);
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] = rows[e] * decay[e];
        multiply_rows(s_.late.scores.dAkk, J, J, x, by_block);
        add(by_block, anchor);
      }
      store_sums(s_.sums[2], J, channel, sum);
    }
  }
  /// sum += a block of a score, transposed, times x
  __device__ void multiply_rows(float* scores, int I, int J, const Four& x, Product& sum) const {
    const float* const block = lower_block(scores, I, J) + 2 * (lane_ % 4) * block_row + lane_ / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float *const upper = block + 8 * half * block_row, *const next = upper + block_row;
      multiply_8(sum, {upper[0], next[0]}, {upper[8], next[8]}, x[2 * half], x[2 * half + 1]);
    }
  }
};

#endif

}  // namespace kda_check::cuda
