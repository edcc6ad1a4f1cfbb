// fp32 operands on tensor cores, each as three bf16 numbers (docs/arithmetic.md, "Operands that are split"),
// and what a chunk is to its state then.
#pragma once

#include "tensor_core_chunk.cuh"
#include "tensor_core_inverse.cuh"

namespace kda_check::cuda {

/// bf16 numbers that a number is split into.
constexpr int parts_of_number = 3;
/// Words of a block of 16 x 16 numbers, part after part, as the right operands that a warp takes at once:
/// lane l has four words of each, of row l / 4 columns 2 (l mod 4) and + 1, then + 8 and + 9, and of row l /
/// 4 + 8.
constexpr int part_words = 4 * warp_lanes, split_block_words = parts_of_number * part_words;

/// A chunk of a head, split, in blocks, in three pieces that begin where they are needed one after the other.
template <int width>  ///< K filled up with zeros: 64 or 128
struct SplitImage {
  static constexpr int row_blocks = blocks_of_chunk, key_blocks = width / 16, pieces = 3;
  template <int blocks>
  using Blocks = std::uint32_t[blocks * split_block_words];

  Blocks<row_blocks * key_blocks> k_start;  ///< k exp(G): block of rows r, channels c at r key_blocks + c
  float beta[image_rows];                   ///< 0 beyond the last row
  Blocks<lower_blocks> Akk_inv;             ///< the inverse: r (r + 1) / 2 + c
  Blocks<row_blocks * key_blocks> q_start;  ///< q exp(G)
  Blocks<lower_blocks> Aqk;
  Blocks<row_blocks * key_blocks> k_end;  ///< k exp(G_n - G), a channel a row: channels c, rows r at 4 c + r
  float decay[width];                     ///< exp(G_n)

  static __host__ __device__ constexpr unsigned piece_bytes(int piece) {
    if (piece == 0) return sizeof(k_start) + sizeof(beta) + sizeof(Akk_inv);
    return piece == 1 ? sizeof(q_start) + sizeof(Aqk) : sizeof(k_end) + sizeof(decay);
  }
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
/// A lane's numbers of a block: of row l / 4 and of the one eight below.
using BlockNumbers = float[2][4];
__device__ inline void store_split(std::uint32_t* block, int lane, const BlockNumbers& x) {
  std::uint32_t parts[parts_of_number][4];
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const float* const two = x[word / 2] + word % 2 * 2;
    split({two[0], two[1]}, parts, word);
  }
#pragma unroll
  for (int p = 0; p < parts_of_number; ++p)
    *reinterpret_cast<uint4*>(block + p * part_words + 4 * lane) = {parts[p][0], parts[p][1], parts[p][2],
                                                                    parts[p][3]};
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

// tensor_core_prepare_split.cu
void launch_split_prepare(const DeviceProblem& p, const TensorCoreWork& work);
// tensor_core_state_split.cu
void launch_split_state(const DeviceProblem& p, const TensorCoreWork& work);

/// Bytes of an image for a K.
constexpr std::size_t split_image_bytes(int K) {
  return K <= 64 ? sizeof(SplitImage<64>) : sizeof(SplitImage<128>);
}

}  // namespace kda_check::cuda
