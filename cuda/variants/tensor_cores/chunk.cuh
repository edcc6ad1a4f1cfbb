// gpu-chunk on tensor cores, forwards, in two kernels (docs/gpu.md, "Tensor cores"): one makes of each
// chunk what the state needs of it, an image; the other takes the state through the images.
#pragma once

#include <type_traits>

#include "cuda/arithmetic/approximations.cuh"
#include "cuda/problem/gates.cuh"
#include "kda/arithmetic/tensor_core_limits.hpp"

namespace kda_check::cuda {

using kda::narrow_tensor_core_key, kda::widest_tensor_core_key;

/// Rows of a chunk.
constexpr int image_rows = 64;

/// ln(1 + exp(y)) up to softplus_threshold.
__device__ inline float fast_softplus(float y) {
  return lg2_ftz(ex2_ftz(y * 0x1.715476p+0f) + 1.0f) * 0x1.62e43p-1f;
}

/// A chunk of a head, as the state takes it. 16-bit rows lie in units of 16 bytes, unit u of row i where u
/// xor (i mod 8) is: eight rows of a column of units are in eight different banks.
template <int width>  ///< K filled up with zeros: 64, 128 or 256
struct ChunkImage {
  std::uint16_t k_start[image_rows * width];       ///< k 2^G
  std::uint16_t q_start[image_rows * width];       ///< q 2^G
  std::uint16_t k_end[image_rows * width];         ///< k 2^(G_n - G)
  std::uint16_t Akk_inv[image_rows * image_rows];  ///< the inverse
  std::uint16_t Aqk[image_rows * image_rows];
  float decay[width];      ///< 2^G_n
  float beta[image_rows];  ///< 0 beyond the last row

  /// Element (row, column) of an array with `columns` columns.
  template <int columns>
  static __host__ __device__ constexpr int at(int row, int column) {
    return row * columns + (column ^ (row & 7) * 8);
  }
  /// Of the array at byte `array`, the address of a unit of a row, from `start`, where a unit u < 8 of this
  /// row would be if the array began the image: that of u + units, which have no bit in common.
  static __device__ constexpr std::uint32_t further(std::uint32_t start, int units, std::size_t array) {
    return (start ^ units % 8 * 16) + units / 8 * 128 + static_cast<std::uint32_t>(array);
  }
};
static_assert(sizeof(ChunkImage<256>) == 115968 && sizeof(ChunkImage<128>) == 66304 &&
              sizeof(ChunkImage<64>) == 41472);

/// What `run --stages` asks for, [tokens][heads][...] and h [chunks][heads][K][V]; null: nobody asks.
struct TensorCoreStages {
  float *G, *Aqk, *Akk_inv, *u;
  float* w;  ///< until the inverse has multiplied them, the keys it is made of
  float *qg, *kg, *h, *v_new;
};

/// What the backward pass needs of the forward one (backward.cuh); null: nobody asks.
struct TensorCoreLeft {
  float* G;  ///< [chunks][heads][image_rows][width] as PrepareShared has them; rows beyond the last are as it
  float *q_norm, *k_norm;    ///< [tokens][heads] reciprocal; 1 where q and k are not normalised
  std::uint16_t *h, *v_new;  ///< operands, [chunks][heads][...]
};

/// The same of split operands, beside left.q_norm and k_norm (variants/tensor_cores/split/backward.cuh).
struct SplitLeft {
  float* inputs;         ///< [chunks][heads] q, k and G of SplitShared
  float* ends;           ///< [chunks][heads] exp(G_n - G), in blocks
  float *h, *e, *v_new;  ///< [chunks][heads] in blocks; e = v - prediction
};

/// Of the heads at work.
struct TensorCoreWork : HeadsAtWork {
  const TokenRange* chunks;     ///< [chunk_count]
  const TokenRange* sequences;  ///< [sequence_count]
  const PieceRange* chunks_of;  ///< [sequence_count]
  int chunk_count, sequence_count;
  kda::DecayForm decay;   ///< anchors of 16 rows
  unsigned char* images;  ///< ChunkImage [chunks][heads]
  TensorCoreStages stages;
  TensorCoreLeft left;
  SplitLeft split;
};

/// Bytes of an image for a K.
constexpr std::size_t image_bytes(int K) {
  if (K <= 64) return sizeof(ChunkImage<64>);
  return K <= 128 ? sizeof(ChunkImage<128>) : sizeof(ChunkImage<256>);
}

/// Calls body(width) with a type whose value is the width of an image, for K up to `widest`.
template <int widest, class Body>
void for_width(int K, Body body) {
  if (K <= 64) return body(std::integral_constant<int, 64>{});
  if constexpr (widest > 128)
    if (K > 128) return body(std::integral_constant<int, 256>{});
  body(std::integral_constant<int, 128>{});
}
/// ... body(dtype, width), dtype the format of q, k and v.
template <int widest, class Body>
void for_operands(numeric::DType dtype, int K, Body body) {
  using numeric::DType;
  const auto with = [&](auto format) { for_width<widest>(K, [&](auto width) { body(format, width); }); };
  if (dtype == DType::bf16) return with(std::integral_constant<DType, DType::bf16>{});
  with(std::integral_constant<DType, DType::fp16>{});
}

// prepare.cu
void launch_tensor_core_prepare(const DeviceProblem& p, const TensorCoreWork& work);
// state.cu
/// Whether this build has the kernels for the device: they are compiled for sm_90 alone.
bool has_tensor_core_kernels();
void launch_tensor_core_state(const DeviceProblem& p, const TensorCoreWork& work);

}  // namespace kda_check::cuda
