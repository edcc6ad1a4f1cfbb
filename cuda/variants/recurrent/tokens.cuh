// Tokens of gpu-recurrent: as they come from memory, and as the columns of a block share them.
#pragma once

#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"

namespace kda_check::cuda {

namespace {

constexpr int block_warps = 8;
constexpr int warp_columns = 4;
constexpr int block_columns = block_warps * warp_columns;
constexpr int tile = block_warps;             ///< tokens prepared together: a warp each
static_assert(widest_key <= 8 * warp_lanes);  // the widest rows below

/// An element on its way from memory: of 2 bytes, the 4 that it is half of; of 4 bytes, it; of 8, as T. One
/// load of 4 bytes is right for both narrow types: two that meet in a register leave a copy behind one of
/// them, which waits for memory where it stands. Tensors are allocated in multiples of 4 bytes
/// (device/memory.cpp).
template <class T>
using Word = std::conditional_t<sizeof(T) == sizeof(float), std::uint32_t, std::uint64_t>;

/// Elements first, first + stride, ..., `count` at most as many as there is room for.
template <class T, int room>
__device__ void fetch_words(const Tensor& tensor, std::size_t first, std::size_t stride, int count,
                            Word<T> (&words)[room]) {
  if (tensor.dtype == numeric::DType::fp64) {
    const auto* const elements = static_cast<const double*>(tensor.data) + first;
#pragma unroll
    for (int i = 0; i < room; ++i)
      if (i < count) words[i] = __builtin_bit_cast(Word<T>, static_cast<T>(elements[i * stride]));
    return;
  }
  const std::size_t bytes = tensor.dtype == numeric::DType::fp32 ? 4 : 2;
  const auto* const elements =
      static_cast<const unsigned char*>(tensor.data) + (first * bytes & ~std::size_t{3});
#pragma unroll
  for (int i = 0; i < room; ++i)
    if (i < count) words[i] = *reinterpret_cast<const std::uint32_t*>(elements + i * stride * bytes);
}
/// Their values. `first` as above; strides are even.
template <class T, int room>
__device__ void values_of_words(const Word<T> (&words)[room], numeric::DType dtype, std::size_t first,
                                T (&values)[room]) {
  const int half = first % 2 == 0 ? 0 : 16;
  const auto all = [&](auto value) {
#pragma unroll
    for (int i = 0; i < room; ++i) values[i] = value(words[i]);
  };
  switch (dtype) {
    case numeric::DType::fp64:
      return all([](Word<T> x) { return __builtin_bit_cast(T, x); });
    case numeric::DType::fp32:
      return all([](Word<T> x) { return value_of<T>(x, numeric::DType::fp32); });
    case numeric::DType::bf16:
      return all([half](Word<T> x) { return value_of<T>(x >> half, numeric::DType::bf16); });
    case numeric::DType::fp16:
      break;
  }
  all([half](Word<T> x) { return value_of<T>(x >> half, numeric::DType::fp16); });
}

/// The inputs of one token as they are stored: rows l, l + 32, ... of each lane; v of 32 columns for each
/// column tile. Nothing is done to them before they are needed, so that nobody waits for memory.
/// any_strength: with room for betas of columns, and for erase and write gates.
template <class T, int rows, int tiles, bool any_strength>
struct RawToken {
  Word<T> q[rows], k[rows], g[rows], v[tiles], beta[any_strength ? tiles : 1];
  Word<T> erase[any_strength ? rows : 1], write[any_strength ? tiles : 1];
};

/// Where they begin in their tensors: those of this lane. erase is where g is, write and betas of columns
/// where v is.
struct TokenPlaces {
  std::size_t query, gate, value, beta;
};

/// Prepared tokens: [tokens][K] each, then [tokens][columns] and [tokens]. any_strength: predictions read the
/// state along a row of their own, and every column has its beta.
template <class T, int columns, int tokens, bool any_strength>
struct Tile {
  static constexpr int keys = any_strength ? 4 : 3, betas = any_strength ? columns : 1;
  T *q, *k, *decay, *read, *v, *o, *beta;

  __device__ Tile(void* memory, int K) {
    q = static_cast<T*>(memory);
    k = q + tokens * K;
    decay = k + tokens * K;
    read = any_strength ? decay + tokens * K : k;
    v = q + keys * tokens * K;
    o = v + tokens * columns;
    beta = o + tokens * columns;
  }
  static std::size_t bytes(int K) { return sizeof(T) * tokens * (keys * K + 2 * columns + betas); }
};

}  // namespace

}  // namespace kda_check::cuda
