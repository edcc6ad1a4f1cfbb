// Backwards on tensor cores, the gradients of a chunk's scores (docs/kda.md, "Chunk backward"): dAqk, what
// the errors e give to dbeta, and through the inverse dAkk.
#pragma once

#include <cstddef>

#include "cuda/variants/tensor_cores/gradients.cuh"

namespace kda_check::cuda {

#ifdef KDA_CHECK_SM90

template <DType dtype, int width>
class GradientScores : public GradientInputs<dtype, width> {
 public:
  using Inputs = GradientInputs<dtype, width>;
  using Inputs::Inputs;
  using typename Inputs::Image, typename Inputs::Words;

 protected:
  using Inputs::blocks_, Inputs::chunk_, Inputs::lane_, Inputs::p_, Inputs::s_, Inputs::thread_,
      Inputs::tiles_, Inputs::warp_, Inputs::work_;

  /// Through V, once. Leaves dAqk, r e, and dX where dAkk will be.
  __device__ void scores() {
    Sums sums{};
    float of_beta[2]{};
    gate::wait(&s_.begun, 0);
    Left left;
    load_left(left);
    Factors factors[products];
    find_factors(factors);
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      this->wait_for_errors(tile);
      if (tile == 0) this->spread_gates();
      if (tile > 0 && tile + 1 < tiles_) this->begin_errors(tile + 1);
      auto& at = s_.errors.tile[tile % 2];
      const int steps = this->steps(tile);
      errors(left, at, steps, of_beta);
      __syncthreads();
      multiply(shared_address(&at), factors, steps, sums);
    }
    store_scores(sums);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      s_.errors.of_lanes[(row_of_warp() + 8 * half) * error_lanes + warp_ / 4 * 4 + lane_ % 4] =
          of_beta[half];
    __syncthreads();
    static_assert(gradient_threads == image_rows * error_lanes / 2);
    const float* const of_lane = s_.errors.of_lanes + thread_ / 8 * error_lanes + thread_ % 8;
    float sum = of_lane[0] + of_lane[8];
#pragma unroll
    for (int side = 4; side > 0; side /= 2) sum = sum + __shfl_xor_sync(whole_warp, sum, side);
    if (thread_ % 8 == 0) s_.of_errors[thread_ / 8] = sum;
  }

  /// dAkk = -stril(X^T dX X^T), which a warp has a block of 16 x 16 of.
  __device__ void through_inverse() const {
    int I = 0;
    while ((I + 1) * (I + 2) / 2 <= warp_) ++I;
    const int M = warp_ - I * (I + 1) / 2, g = lane_ / 4, t = lane_ % 4;
    const bool has_block = warp_ < lower_blocks && I < blocks_;
    const std::uint16_t* const X = s_.errors.inverse;
    auto& scores = s_.late.scores;
    float* const between = s_.late.between;
    if (has_block) {  // dX X^T
      BlockProduct sum{};
#pragma unroll 1
      for (int J = 0; J <= M; ++J) {
        const float* const left = lower_block(scores.dAkk, I, J);
#pragma unroll
        for (int first = 0; first < 16; first += 8) {
          const int j = first + 2 * t;
          const float2 upper = *reinterpret_cast<const float2*>(left + g * block_row + j),
                       lower = *reinterpret_cast<const float2*>(left + (g + 8) * block_row + j);
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const std::uint32_t two = *reinterpret_cast<const std::uint32_t*>(
                X + Image::template at<image_rows>(16 * M + 8 * n + g, 16 * J + j));
            multiply_8(sum[n], upper, lower, Words::first(two), Words::second(two));
          }
        }
      }
      store_block<false>(lower_block(between, I, M), sum, lane_);
    }
    __syncthreads();
    if (has_block) {  // X^T of that
      BlockProduct sum{};
#pragma unroll 1
      for (int i = I; i < blocks_; ++i) {
        const float* const right = lower_block(between, i, M);
#pragma unroll
        for (int first = 0; first < 16; first += 8) {
          const int k = first + 2 * t;
          const auto x = [&](int row, int column) {
            return Words::first(X[Image::template at<image_rows>(16 * i + k + row, 16 * I + g + column)]);
          };
          const float2 upper{x(0, 0), x(1, 0)}, lower{x(0, 8), x(1, 8)};
#pragma unroll
          for (int n = 0; n < 2; ++n)
            multiply_8(sum[n], upper, lower, right[k * block_row + 8 * n + g],
                       right[(k + 1) * block_row + 8 * n + g]);
        }
      }
      if (I == M) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (8 * n + 2 * t + e % 2 >= g + e / 2 * 8) sum[n][e] = 0.0f;
      }
      store_block<true>(lower_block(scores.dAkk, I, M), sum, lane_);
    }
    before_bulk_copies();  // a tile comes to where the product between was
    __syncthreads();
  }

  /// Blocks of the diagonal.
  struct Diagonal {
    const float *dAqk, *dAkk;
  };
  __device__ Diagonal diagonal(int block) const {
    return {lower_block(s_.late.scores.dAqk, block, block), lower_block(s_.late.scores.dAkk, block, block)};
  }

  /// Both, for those who ask for stages.
  __device__ void tell_scores() const {
    const TensorCoreGradientStages& to = work_.gradient_stages;
    if (to.dAqk == nullptr) return;
#pragma unroll 1
    for (int e = thread_; e < chunk_.rows * image_rows; e += gradient_threads) {
      const int row = e / image_rows, column = e % image_rows, from = row % 16 * block_row + column % 16;
      const auto score = [&](float* scores) { return lower_block(scores, row / 16, column / 16)[from]; };
      const std::size_t at = work_.row(chunk_.token + row, chunk_.local) * image_rows + column;
      to.dAqk[at] = column <= row ? score(s_.late.scores.dAqk) : 0.0f;
      to.dAkk[at] = column < row ? score(s_.late.scores.dAkk) : 0.0f;
    }
  }

 private:
  /// 16 x 8 products: of each square the twenty up to the diagonal, of which a warp has every 16th.
  static constexpr int squares = 2 * lower_blocks,
                       products = (2 * squares + gradient_warps - 1) / gradient_warps;
  using Sums = float[products][4];

  __device__ int row_of_warp() const { return 16 * (warp_ % 4) + lane_ / 4; }
  __device__ int matrix() const { return lane_ / 8; }
  __device__ int in_matrix() const { return lane_ % 8; }

  /// k 2^G of 16 rows, and the 16 columns of the inverse that they are in A^T: what a warp multiplies every
  /// tile by.
  struct Left {
    std::uint32_t keys[width / 16][4], inverse[image_rows / 16][4];
  };
  __device__ void load_left(Left& left) const {
    const int top = 16 * (warp_ % 4);
#pragma unroll
    for (int n = 0; n < width / 16; ++n)
      load_matrices(left.keys[n],
                    shared_address(s_.errors.k_start +
                                   Image::template at<width>(top + lane_ % 16, 16 * n + lane_ / 16 * 8)));
#pragma unroll
    for (int n = 0; n < image_rows / 16; ++n)
      load_transposed(left.inverse[n],
                      shared_address(s_.errors.inverse +
                                     Image::template at<image_rows>(16 * n + matrix() / 2 * 8 + in_matrix(),
                                                                    top + matrix() % 2 * 8)));
  }

  /// Of 16 rows and eight columns of V: e = v - k 2^G h, r = X^T dv; p = beta e in the place of v; r e.
  __device__ void errors(const Left& left, ErrorTile<width>& tile, int steps, float (&of_beta)[2]) const {
    const int m = warp_ % 4, n = warp_ / 4;
    if (n >= 2 * steps || m >= blocks_) return;
    float prediction[4]{}, r[4]{};
    const std::uint32_t h = shared_address(tile.h) +
                            2 * Image::template at<width>(8 * n + in_matrix(), 8 * matrix()),
                        dv = shared_address(tile.dv) +
                             2 * Image::template at<image_rows>(8 * n + in_matrix(), 8 * matrix());
#pragma unroll
    for (int k = 0; k < width / 16; k += 2) {
      std::uint32_t b[4];
      load_matrices(b, Image::further(h, 2 * k, 0));
      multiply_16<dtype>(prediction, left.keys[k], b[0], b[1]);
      multiply_16<dtype>(prediction, left.keys[k + 1], b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < image_rows / 16; i += 2) {
      if (i + 1 < m) continue;
      std::uint32_t b[4];
      load_matrices(b, Image::further(dv, 2 * i, 0));
      if (i >= m) multiply_16<dtype>(r, left.inverse[i], b[0], b[1]);
      multiply_16<dtype>(r, left.inverse[i + 1], b[2], b[3]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_warp() + 8 * half;
      auto& v =
          *reinterpret_cast<std::uint32_t*>(tile.v + row * value_tile_row + 2 * (8 * n + 2 * (lane_ % 4)));
      const float2 e{Words::first(v) - prediction[2 * half], Words::second(v) - prediction[2 * half + 1]};
      const float beta = s_.beta[row];
      v = row < chunk_.rows ? Words::of(e.x * beta, e.y * beta) : 0;
      of_beta[half] = fmaf(r[2 * half], e.x, of_beta[half]);
      of_beta[half] = fmaf(r[2 * half + 1], e.y, of_beta[half]);
    }
  }

  /// each(number of the sum, is it of dX, block of rows, eight columns) of this warp's products.
  template <class Each>
  __device__ void each_product(Each each) const {
#pragma unroll
    for (int s = 0; s < products; ++s) {
      const int number = warp_ + s * gradient_warps;
      if (number >= 2 * squares) break;
      const int of_square = number % squares, I = of_square < 2    ? 0
                                                  : of_square < 6  ? 1
                                                  : of_square < 12 ? 2
                                                                   : 3;
      if (I < blocks_) each(s, number >= squares, I, of_square - I * (I + 1));
    }
  }
  /// Where a lane's matrices of either factor are in a tile, in bytes.
  struct Factors {
    std::uint32_t left, right;
  };
  __device__ void find_factors(Factors (&of)[products]) const {
    using Tile = ErrorTile<width>;
    each_product([&](int s, bool of_inverse, int I, int eight) {
      if (of_inverse) {
        of[s].left = offsetof(Tile, dv) + 2 * Image::template at<image_rows>(matrix() / 2 * 8 + in_matrix(),
                                                                             16 * I + matrix() % 2 * 8);
        of[s].right = offsetof(Tile, v) + (8 * eight + in_matrix()) * value_tile_row + 16 * matrix();
      } else {
        of[s].left = offsetof(Tile, d_o) + (16 * I + lane_ % 16) * value_tile_row + lane_ / 16 * 16;
        of[s].right = offsetof(Tile, v_new) + 2 * Image::template at<image_rows>(lane_, 8 * eight);
      }
    });
  }
  /// do v_new^T, dv p^T
  __device__ void multiply(std::uint32_t tile, const Factors (&of)[products], int steps, Sums& sums) const {
    each_product([&](int s, bool of_inverse, int, int) {
      std::uint32_t a[2][4], b[4];
      const std::uint32_t left = tile + of[s].left, right = tile + of[s].right;
      if (of_inverse) {
        load_matrices(b, right), load_transposed(a[0], left);
        if (steps > 1) load_transposed(a[1], left + 16 * image_rows * 2);
      } else {
        load_transposed(b, right), load_matrices(a[0], left);
        if (steps > 1) load_matrices(a[1], left + 32);
      }
      multiply_16<dtype>(sums[s], a[0], b[0], b[1]);
      if (steps > 1) multiply_16<dtype>(sums[s], a[1], b[2], b[3]);
    });
  }
  __device__ void store_scores(const Sums& sums) const {
    const float scale = static_cast<float>(p_.scale);
    each_product([&](int s, bool of_inverse, int I, int eight) {
      const int J = eight / 2, column = eight % 2 * 8 + 2 * (lane_ % 4);
      float* const block = lower_block(of_inverse ? s_.late.scores.dAkk : s_.late.scores.dAqk, I, J);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = lane_ / 4 + 8 * half;
        float2 x{sums[s][2 * half], sums[s][2 * half + 1]};
        if (!of_inverse) x.x = scale * x.x, x.y = scale * x.y;
        if (I == J) {
          const int last = of_inverse ? row - 1 : row;
          if (column > last) x.x = 0.0f;
          if (column + 1 > last) x.y = 0.0f;
        }
        *reinterpret_cast<float2*>(block + row * block_row + column) = x;
      }
    });
  }
};

#endif

}  // namespace kda_check::cuda
