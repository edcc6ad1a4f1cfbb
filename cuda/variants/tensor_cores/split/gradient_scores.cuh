// Backwards on tensor cores in fp32, the gradients of a chunk's scores (docs/kda.md, "Chunk backward"): dAqk,
// what the errors e give to dbeta, and through the inverse dAkk.
#pragma once

#include "cuda/variants/tensor_cores/split/gradients.cuh"

namespace kda_check::cuda {

#ifdef KDA_CHECK_SM90

/// `tells`: stages, for those who ask.
template <int width, bool by_pairs, bool tells>
class SplitGradientScores : public SplitGradientInputs<width> {
 public:
  using Inputs = SplitGradientInputs<width>;
  using Inputs::Inputs;

 protected:
  using Inputs::blocks_, Inputs::chunk_, Inputs::columns_, Inputs::lane_, Inputs::p_, Inputs::s_,
      Inputs::thread_, Inputs::warp_, Inputs::work_;

  /// dAqk and dA: a warp has eight columns of every 16 of a block of rows. And r e.
  __device__ void scores() const {
    const int I = (warp_ + warp_ / 4) % 4, n = warp_ / 4 % 2;
    const bool of_inverse = warp_ >= gradient_warps / 2;
    if (I < blocks_) {
      SplitSums<1> sums[blocks_of_chunk];
      const float* const left = this->values(of_inverse ? work_.dv : work_.d_o, I);
      const float* const right = this->values(of_inverse ? work_.split.e : work_.split.v_new, 0);
#pragma unroll 1
      for (int c = 0; c < columns_; ++c) {
        const float* const rows = left + c * numbers_of_block;
        SplitLeftFactor a;
        as_left(load_half(rows, 0, lane_), load_half(rows, 1, lane_), a);
        float4 columns[blocks_of_chunk];
#pragma unroll
        for (int J = 0; J < blocks_of_chunk; ++J)
          if (J <= I) columns[J] = load_half(right + (J * columns_ + c) * numbers_of_block, n, lane_);
#pragma unroll
        for (int J = 0; J < blocks_of_chunk; ++J) {
          if (J > I) break;
          float4& x = columns[J];
          if (of_inverse) {
            const float beta = s_.beta[16 * J + 8 * n + lane_ / 4];
            x.x = x.x * beta, x.y = x.y * beta, x.z = x.z * beta, x.w = x.w * beta;
          }
          std::uint32_t b[1][parts_of_number][2];
          as_right(x, b[0]);
          sums[J].template add<false, 0>(a, b);
        }
      }
#pragma unroll
      for (int J = 0; J < blocks_of_chunk; ++J)
        if (J <= I) store_scores(sums[J], of_inverse, I, J, n);
    }
    if (warp_ < 2 * blocks_of_chunk) errors(warp_ % 4, warp_ / 4);
    __syncthreads();
  }

  /// dAkk = -stril(X^T dA X^T), which a warp has a block of 16 x 16 of.
  __device__ void through_inverse() const {
    int I = 0;
    while (lower_number(I + 1, 0) <= warp_) ++I;
    const int M = warp_ - lower_number(I, 0), g = lane_ / 4, t = lane_ % 4;
    const bool has_block = warp_ < lower_blocks && I < blocks_;
    auto& scores = s_.scores;
    const auto inverse = [&](int i, int j) {
      return scores.inverse + lower_number(i, j) * split_block_words;
    };
    gate::wait(&s_.begun, 0);
    if (has_block) {  // dA X^T
      SplitSums<2> sums;
#pragma unroll 1
      for (int J = 0; J <= M; ++J) {
        const float* const left = lower_block(scores.dA, I, J) + g * block_row + 2 * t;
        SplitLeftFactor a;
#pragma unroll
        for (int word = 0; word < 4; ++word)
          split(*reinterpret_cast<const float2*>(left + word % 2 * 8 * block_row + word / 2 * 8), a, word);
        SplitRightFactor b;
        load_right<false>(b, 0, inverse(M, J), lane_);
        sums.template add<false, 0>(a, b);
      }
      BlockProduct sum;
      sums.finish(sum);
      store_block<false>(lower_block(scores.between, I, M), sum, lane_);
    }
    __syncthreads();
    if (has_block) {  // X^T of that
      SplitSums<2> sums;
#pragma unroll 1
      for (int i = I; i < blocks_; ++i) {
        SplitLeftFactor a;
        load_left<true>(a, inverse(i, I), lane_);
        const float* const right = lower_block(scores.between, i, M) + 2 * t * block_row + g;
        SplitRightFactor b;
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const float* const from = right + 8 * half * block_row + 8 * n;
            split({from[0], from[block_row]}, b[n], half);
          }
        sums.template add<false, 0>(a, b);
      }
      BlockProduct sum;
      sums.finish(sum);
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = g + 8 * half, column = 8 * n + 2 * t;
          float2 x{-sum[n][2 * half], -sum[n][2 * half + 1]};
          if (I == M && column >= row) x.x = 0.0f;
          if (I == M && column + 1 >= row) x.y = 0.0f;
          put(s_.dAkk, I, M, half, n, x);
          if constexpr (tells) tell(work_.gradient_stages.dAkk, I, M, half, n, x);
        }
    }
    if constexpr (tells) tell_zeros();
    __syncthreads();
  }

  /// Blocks of the diagonal, where they have numbers.
  struct Diagonal {
    const float *dAqk, *dAkk;
  };
  __device__ Diagonal diagonal(int block) const {
    const int at = lower_number(block, block) * split_block_words;
    return {reinterpret_cast<const float*>(s_.dAqk + at), reinterpret_cast<const float*>(s_.dAkk + at)};
  }

 private:
  /// Two neighbours of half the rows and columns of a block of scores.
  __device__ void put(std::uint32_t* scores, int I, int J, int half, int n, float2 x) const {
    std::uint32_t* const block = scores + lower_number(I, J) * split_block_words;
    if (by_pairs && I == J)
      *reinterpret_cast<float2*>(reinterpret_cast<float*>(block) + (lane_ / 4 + 8 * half) * block_row +
                                 8 * n + 2 * (lane_ % 4)) = x;
    else
      store_split(block, 2 * half + n, lane_, x);
  }
  /// What put() has.
  __device__ void tell(float* stage, int I, int J, int half, int n, float2 x) const {
    const int row = 16 * I + 8 * half + lane_ / 4;
    if (row >= chunk_.rows) return;
    *reinterpret_cast<float2*>(stage + work_.row(chunk_.token + row, chunk_.local) * image_rows + 16 * J +
                               8 * n + 2 * (lane_ % 4)) = x;
  }
  /// Blocks beyond the diagonal.
  __device__ void tell_zeros() const {
    const TensorCoreGradientStages& to = work_.gradient_stages;
#pragma unroll 1
    for (int e = thread_; e < chunk_.rows * image_rows; e += gradient_threads) {
      const int row = e / image_rows, column = e % image_rows;
      if (column / 16 <= row / 16) continue;
      const std::size_t at = work_.row(chunk_.token + row, chunk_.local) * image_rows + column;
      to.dAqk[at] = to.dAkk[at] = 0.0f;
    }
  }

  __device__ void store_scores(const SplitSums<1>& sums, bool of_inverse, int I, int J, int n) const {
    const float scale = static_cast<float>(p_.scale);
    const int column = 8 * n + 2 * (lane_ % 4);
    float sum[1][4];
    sums.finish(sum);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_ / 4 + 8 * half, last = of_inverse ? row - 1 : row;
      float2 x{sum[0][2 * half], sum[0][2 * half + 1]};
      if (!of_inverse) x.x = scale * x.x, x.y = scale * x.y;
      if (I == J && column > last) x.x = 0.0f;
      if (I == J && column + 1 > last) x.y = 0.0f;
      if (of_inverse)
        *reinterpret_cast<float2*>(lower_block(s_.scores.dA, I, J) + row * block_row + column) = x;
      else
        put(s_.dAqk, I, J, half, n, x);
      if constexpr (tells)
        if (!of_inverse) tell(work_.gradient_stages.dAqk, I, J, half, n, x);
    }
  }

  /// Rows of r e, summed, of half a block of them: a lane has what four of 16 lanes add up.
  __device__ void errors(int block, int half) const {
    if (block >= blocks_) return;
    const float *const r = this->values(work_.r, block), *const e = this->values(work_.split.e, block);
    float sums[2][2]{};  // of even and odd blocks of V
    const auto add = [&](float(&sum)[2], int c) {
      if (c >= columns_) return;
      const float4 x = load_half(r + c * numbers_of_block, half, lane_),
                   y = load_half(e + c * numbers_of_block, half, lane_);
      sum[0] = fmaf(x.x, y.x, sum[0]), sum[0] = fmaf(x.y, y.y, sum[0]);
      sum[1] = fmaf(x.z, y.z, sum[1]), sum[1] = fmaf(x.w, y.w, sum[1]);
    };
#pragma unroll 2
    for (int c = 0; c < columns_; c += 2) add(sums[0], c), add(sums[1], c + 1);
    float sum = (sums[0][0] + sums[1][0]) + (sums[0][1] + sums[1][1]);
    sum = sum + __shfl_xor_sync(whole_warp, sum, 2);
    sum = sum + __shfl_xor_sync(whole_warp, sum, 1);
    if (lane_ % 4 == 0) s_.of_errors[16 * block + 8 * half + lane_ / 4] = sum;
  }
};

#endif

}  // namespace kda_check::cuda
