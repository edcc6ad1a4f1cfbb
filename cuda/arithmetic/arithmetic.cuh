// The arithmetic of the GPU kernels: every rounding and the order of every sum is written here, so that a CPU
// can do the same. Compiled with -fmad=false: what is fused is fused because the source says so.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kda/arithmetic/rounded.hpp"
#include "numeric/rounding.hpp"

#ifdef __USE_FAST_MATH__
#error "kda-check measures rounding errors: compile without --use_fast_math"
#endif

namespace kda_check::cuda {

using kda::CastPoints;
using kda::Exponential;

constexpr int warp_lanes = 32;
constexpr unsigned whole_warp = 0xffffffffu;

/// Four neighbours, fetched together.
template <class T>
struct alignas(16) Four {
  T x[4];
};

/// a * b + c with one rounding or with two.
template <bool is_fused>
__device__ float multiply_add(float a, float b, float c) {
  return is_fused ? fmaf(a, b, c) : a * b + c;
}
template <bool is_fused>
__device__ double multiply_add(double a, double b, double c) {
  return is_fused ? fma(a, b, c) : a * b + c;
}

/// expf and __expf, whose bits docs/arithmetic.md tells; in fp64 CUDA's exp (1 ULP).
__device__ inline float exponential(Exponential kind, float x) {
  return kind == Exponential::cuda_fast ? __expf(x) : expf(x);
}
__device__ inline double exponential(Exponential, double x) { return exp(x); }

__device__ inline float square_root(float x) { return sqrtf(x); }
__device__ inline double square_root(double x) { return sqrt(x); }

/// In fp32 evaluated in fp64 and rounded once, as the CPU kernels do it: from 0 to 2^30 the same bits.
__device__ inline float log1p_of(float x) { return static_cast<float>(log1p(static_cast<double>(x))); }
__device__ inline double log1p_of(double x) { return log1p(x); }

/// All of x through one cast point.
template <kda::Rounding rounding, int count>
__device__ void round_each(float (&x)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) x[i] = kda::rounded(rounding, x[i]);
}
template <kda::Rounding rounding, int rows, int columns>
__device__ void round_each(float (&x)[rows][columns]) {
#pragma unroll
  for (int r = 0; r < rows; ++r) round_each<rounding>(x[r]);
}

/// All of the array x through a cast point; fp64 computations have none. The branches stand around the loops:
/// a branch an element would be as many times the code, for the compiler to work through and the device to
/// fetch.
template <class Array>
__device__ void round_all(kda::Rounding rounding, Array& x) {
  if constexpr (std::is_same_v<std::remove_all_extents_t<Array>, float>) switch (rounding) {
      case kda::Rounding::none:
        return;
      case kda::Rounding::bf16:
        return round_each<kda::Rounding::bf16>(x);
      case kda::Rounding::fp16:
        return round_each<kda::Rounding::fp16>(x);
      case kda::Rounding::tf32:
        return round_each<kda::Rounding::tf32>(x);
    }
}

/// An element as it is stored, of 2, 4 or 8 bytes.
using Stored = std::uint64_t;

__device__ inline Stored fetch_stored(const void* data, numeric::DType dtype, std::size_t i) {
  if (dtype == numeric::DType::fp64) return static_cast<const std::uint64_t*>(data)[i];
  if (dtype == numeric::DType::fp32) return static_cast<const std::uint32_t*>(data)[i];
  return static_cast<const std::uint16_t*>(data)[i];
}

/// Elements first, first + stride, ..., `count` at most as many as there is room for: the branches once for
/// all, and all of them on their way before anybody waits.
template <int room>
__device__ void fetch_stored(const void* data, numeric::DType dtype, std::size_t first, std::size_t stride,
                             int count, Stored (&stored)[room]) {
  const auto all = [&](const auto* elements) {
#pragma unroll
    for (int i = 0; i < room; ++i)
      if (i < count) stored[i] = elements[first + i * stride];
  };
  if (dtype == numeric::DType::fp64) return all(static_cast<const std::uint64_t*>(data));
  if (dtype == numeric::DType::fp32) return all(static_cast<const std::uint32_t*>(data));
  all(static_cast<const std::uint16_t*>(data));
}

template <class T>
__device__ T value_of(Stored bits, numeric::DType dtype) {
  switch (dtype) {
    case numeric::DType::fp64:
      return static_cast<T>(__longlong_as_double(static_cast<long long>(bits)));
    case numeric::DType::fp32:
      return static_cast<T>(__uint_as_float(static_cast<unsigned>(bits)));
    case numeric::DType::bf16:
      return static_cast<T>(numeric::widen_to_float(numeric::Bfloat16{static_cast<std::uint16_t>(bits)}));
    case numeric::DType::fp16:
      break;
  }
  return static_cast<T>(numeric::widen_to_float(numeric::Float16{static_cast<std::uint16_t>(bits)}));
}

template <class T, int room>
__device__ void values_of(const Stored (&stored)[room], numeric::DType dtype, T (&values)[room]) {
  const auto all = [&](auto value) {
#pragma unroll
    for (int i = 0; i < room; ++i) values[i] = static_cast<T>(value(stored[i]));
  };
  switch (dtype) {
    case numeric::DType::fp64:
      return all([](Stored x) { return value_of<double>(x, numeric::DType::fp64); });
    case numeric::DType::fp32:
      return all([](Stored x) { return value_of<float>(x, numeric::DType::fp32); });
    case numeric::DType::bf16:
      return all([](Stored x) { return value_of<float>(x, numeric::DType::bf16); });
    case numeric::DType::fp16:
      break;
  }
  all([](Stored x) { return value_of<float>(x, numeric::DType::fp16); });
}

/// Element `i` of a stored tensor.
template <class T>
__device__ T load(const void* data, numeric::DType dtype, std::size_t i) {
  return value_of<T>(fetch_stored(data, dtype, i), dtype);
}

/// x rounded once into element `i`.
template <class T>
__device__ void store(T x, void* data, numeric::DType dtype, std::size_t i) {
  switch (dtype) {
    case numeric::DType::fp64:
      static_cast<double*>(data)[i] = static_cast<double>(x);
      return;
    case numeric::DType::fp32:
      static_cast<float*>(data)[i] = static_cast<float>(x);
      return;
    case numeric::DType::bf16:
      static_cast<numeric::Bfloat16*>(data)[i] = numeric::round_to<numeric::Bfloat16>(static_cast<double>(x));
      return;
    case numeric::DType::fp16:
      static_cast<numeric::Float16*>(data)[i] = numeric::round_to<numeric::Float16>(static_cast<double>(x));
      return;
  }
}

/// tree:32 over what the first `used` lanes hold; every lane gets the sum. A sum and its mirror image are the
/// same bits, so each lane may add its partner's to its own. Lanes from `used` on are left out, not added as
/// zeros: -0 + 0 is 0.
template <class T>
__device__ T warp_sum(T mine, int used) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
#pragma unroll
  for (int half = warp_lanes / 2; half > 0; half /= 2) {
    const T other = __shfl_xor_sync(whole_warp, mine, half);
    const bool mine_counts = (lane & (half - 1)) + (lane & half) < used,
               other_counts = (lane & (half - 1)) + (~lane & half) < used;
    if (other_counts) mine = mine_counts ? mine + other : other;
    used = used < half ? used : half;
  }
  return mine;
}

/// This lane's part of the sum over k < K of a_k b_k: k = l, l + 32, ..., in `rows` registers each.
template <bool is_fused, class T, int rows>
__device__ T warp_dot_part(const T (&a)[rows], const T (&b)[rows], const bool (&valid)[rows]) {
  T sum = a[0] * b[0];
#pragma unroll
  for (int r = 1; r < rows; ++r)
    if (valid[r]) sum = multiply_add<is_fused>(a[r], b[r], sum);
  return sum;
}

}  // namespace kda_check::cuda
