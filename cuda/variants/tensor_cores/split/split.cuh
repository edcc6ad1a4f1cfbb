// fp32 operands on tensor cores, each as three bf16 numbers (docs/arithmetic.md, "Operands that are split"),
// and what a chunk is to its state then.
#pragma once

#include "cuda/variants/tensor_cores/chunk.cuh"
#include "cuda/variants/tensor_cores/inverse.cuh"

namespace kda_check::cuda {

/// bf16 numbers that a number is split into.
constexpr int parts_of_number = 3;
/// Words of a block of 16 x 16 numbers, part after part, each as four matrices of 8 x 8: rows 0 to 7, columns
/// 0 to 7, then 8 to 15, then those of rows 8 to 15. So an instruction brings a warp a part of either factor,
/// as it is or transposed.
constexpr int part_words = 4 * warp_lanes, split_block_words = parts_of_number * part_words;

/// A chunk of a head, split, in blocks.
template <int width>  ///< K filled up with zeros: 64 or 128
struct SplitImage {
  static constexpr int row_blocks = blocks_of_chunk, key_blocks = width / 16;
  template <int blocks>
  using Blocks = std::uint32_t[blocks * split_block_words];

  Blocks<row_blocks * key_blocks> k_start;  ///< k exp(G): block of rows r, channels c at r key_blocks + c
  float beta[image_rows];                   ///< 0 beyond the last row
  Blocks<lower_blocks> Akk_inv;             ///< the inverse: r (r + 1) / 2 + c
  Blocks<row_blocks * key_blocks> q_start;  ///< q exp(G)
  Blocks<lower_blocks> Aqk;
  Blocks<row_blocks * key_blocks> k_end;  ///< k exp(G_n - G), a channel a row: channels c, rows r at 4 c + r
  float decay[width];                     ///< exp(G_n)
};
static_assert(sizeof(SplitImage<128>) == 178944);

/// Block (r, c), c <= r, of a lower triangular chunk.
__host__ __device__ constexpr int lower_number(int r, int c) { return r * (r + 1) / 2 + c; }

#ifdef KDA_CHECK_SM90

/// Elements [first, first + count) of a tensor are on their way to the cache.
__device__ inline void announce(const Tensor& x, std::size_t first, int count) {
  using numeric::DType;
  const int bytes = x.dtype == DType::fp64 ? 8 : x.dtype == DType::fp32 ? 4 : 2;
  const auto* const from = static_cast<const unsigned char*>(x.data) + first * bytes;
  constexpr int line = 128;
  for (int at = 0; at < count * bytes; at += line) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
}

/// Two neighbours into word `at` of each part.
template <int words>
__device__ void split(float2 x, std::uint32_t (&parts)[parts_of_number][words], int at) {
  using Words = Pair<numeric::DType::bf16>;
#pragma unroll
  for (int p = 0; p < parts_of_number; ++p) {
    const std::uint32_t word = parts[p][at] = Words::of(x.x, x.y);
    x.x = x.x - Words::first(word), x.y = x.y - Words::second(word);
  }
}
/// A lane's numbers of a block: of row l / 4 and of the one eight below columns 2 (l mod 4) and + 1, then + 8
/// and + 9.
using BlockNumbers = float[2][4];
/// Words of two neighbours into matrix `matrix` of a block.
__device__ inline void store_split(std::uint32_t* block, int matrix, int lane, float2 two) {
  std::uint32_t parts[parts_of_number][1];
  split(two, parts, 0);
#pragma unroll
  for (int p = 0; p < parts_of_number; ++p) block[p * part_words + matrix * warp_lanes + lane] = parts[p][0];
}
__device__ inline void store_split(std::uint32_t* block, int lane, const BlockNumbers& x) {
#pragma unroll
  for (int matrix = 0; matrix < 4; ++matrix) {
    const float* const two = x[matrix / 2] + matrix % 2 * 2;
    store_split(block, matrix, lane, {two[0], two[1]});
  }
}
/// Part p of a block in shared memory, `transposed` or as it is: a lane has what multiply_16() takes as the
/// left factor in the order of matrices (0, 2, 1, 3; transposed: 0, 1, 2, 3), as the right one two of them
/// for each eight columns.
template <bool transposed>
__device__ void load_part(std::uint32_t (&x)[4], const std::uint32_t* block, int p, int lane) {
  const std::uint32_t row = shared_address(block + p * part_words + 4 * lane);
  transposed ? load_transposed(x, row) : load_matrices(x, row);
}
/// A block as left factor.
using SplitLeftFactor = std::uint32_t[parts_of_number][4];
template <bool transposed>
__device__ void load_left(SplitLeftFactor& a, const std::uint32_t* block, int lane) {
#pragma unroll
  for (int p = 0; p < parts_of_number; ++p) {
    std::uint32_t x[4];
    load_part<transposed>(x, block, p, lane);
    a[p][0] = x[0], a[p][3] = x[3];
    a[p][1] = x[transposed ? 1 : 2], a[p][2] = x[transposed ? 2 : 1];
  }
}
/// A block as right factor: what is 16 rows of it, of `transposed` columns, are the 16 columns of two tiles.
using SplitRightFactor = std::uint32_t[2][parts_of_number][2];
template <bool transposed, int tiles>
__device__ void load_right(std::uint32_t (&b)[tiles][parts_of_number][2], int first,
                           const std::uint32_t* block, int lane) {
#pragma unroll
  for (int p = 0; p < parts_of_number; ++p) {
    std::uint32_t x[4];
    load_part<transposed>(x, block, p, lane);
    b[first][p][0] = x[0], b[first + 1][p][1] = x[3];
    b[first][p][1] = x[transposed ? 2 : 1], b[first + 1][p][0] = x[transposed ? 1 : 2];
  }
}

/// Sums of `count` tiles of 16 x 8 products: of high parts, and of the five lesser ones.
template <int count>
struct SplitSums {
  float high[count][4] = {}, low[count][4] = {};

  /// Tile i from `first` on += a b_i. `transposed`: b is the left factor.
  template <bool transposed, int first, int columns>
  __device__ void add(const std::uint32_t (&a)[parts_of_number][4],
                      const std::uint32_t (&b)[columns][parts_of_number][2]) {
    constexpr int left[] = {2, 0, 1, 1, 0, 0}, right[] = {0, 2, 1, 0, 1, 0};
#pragma unroll
    for (int product = 0; product < 6; ++product)
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        const int of_a = transposed ? right[product] : left[product],
                  of_b = transposed ? left[product] : right[product];
        multiply_16<numeric::DType::bf16>(product == 5 ? high[first + i] : low[first + i], a[of_a],
                                          b[i][of_b][0], b[i][of_b][1]);
      }
  }
  __device__ void finish(float (&sums)[count][4]) const {
#pragma unroll
    for (int i = 0; i < count; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][e] = high[i][e] + low[i][e];
  }
};

/// Products of blocks of 16 x 16, for the inverse.
struct SplitBlocks {
  static constexpr int unrolled = 1;

  /// left(0 or 1: row l / 4 or + 8, half): of each half of the columns 2 (l mod 4) and + 1.
  template <class Left>
  static __device__ void add(BlockProduct& sum, const Left& left, const float* right, int lane) {
    std::uint32_t a[parts_of_number][4], b[2][parts_of_number][2];
    const int g = lane / 4, k = 2 * (lane % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      split(left(0, half), a, 2 * half), split(left(1, half), a, 2 * half + 1);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* const from = right + (8 * half + k) * block_row + 8 * n + g;
        split({from[0], from[block_row]}, b[n], half);
      }
    }
    SplitSums<2> sums;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums.high[n][e] = sum[n][e];
    sums.add<false, 0>(a, b);
    sums.finish(sum);
  }
  static __device__ void multiply(BlockProduct& sum, const float* left, const float* right, int lane) {
    add(
        sum,
        [=](int lower, int half) {
          return *reinterpret_cast<const float2*>(left + (lane / 4 + 8 * lower) * block_row + 8 * half +
                                                  2 * (lane % 4));
        },
        right, lane);
  }
  static __device__ void multiply(BlockProduct& sum, const BlockProduct& left, const float* right, int lane) {
    add(
        sum,
        [&](int lower, int half) {
          return float2{left[half][2 * lower], left[half][2 * lower + 1]};
        },
        right, lane);
  }
};

#endif

// prepare.cu
void launch_split_prepare(const DeviceProblem& p, const TensorCoreWork& work);
// state.cu
void launch_split_state(const DeviceProblem& p, const TensorCoreWork& work);

/// Bytes of an image for a K.
constexpr std::size_t split_image_bytes(int K) {
  return K <= 64 ? sizeof(SplitImage<64>) : sizeof(SplitImage<128>);
}

}  // namespace kda_check::cuda
