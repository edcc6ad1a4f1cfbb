// A pack of one number: what a thread of a GPU has where one of a CPU has a Lanes (lanes.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/strict.hpp"

#ifndef KDA_CHECK_ISA
#error "kernels are compiled once for each instruction set, which KDA_CHECK_ISA names"
#endif

namespace kda_check::kda::KDA_CHECK_ISA {

template <class T>
struct OneLane {
  using Scalar = T;
  static constexpr std::size_t count = 1;

  T x;

  static __device__ OneLane zero() { return {T(0)}; }
  static __device__ OneLane broadcast(T value) { return {value}; }
  static __device__ OneLane load(const T* source) { return {*source}; }
  __device__ void store(T* target) const { *target = x; }
};

template <class T>
__device__ OneLane<T> operator+(const OneLane<T>& a, const OneLane<T>& b) {
  return {a.x + b.x};
}
template <class T>
__device__ OneLane<T> operator-(const OneLane<T>& a, const OneLane<T>& b) {
  return {a.x - b.x};
}
template <class T>
__device__ OneLane<T> operator*(const OneLane<T>& a, const OneLane<T>& b) {
  return {a.x * b.x};
}
template <class T>
__device__ OneLane<T> operator*(const OneLane<T>& a, T b) {
  return {a.x * b};
}
template <class T>
__device__ OneLane<T> operator-(const OneLane<T>& a, T b) {
  return {a.x - b};
}
template <class T>
__device__ OneLane<T> operator-(const OneLane<T>& a) {
  return {-a.x};
}

template <bool is_fused>
__device__ float scalar_multiply_add(float a, float b, float c) {
  return is_fused ? fmaf(a, b, c) : a * b + c;
}
template <bool is_fused>
__device__ double scalar_multiply_add(double a, double b, double c) {
  return is_fused ? fma(a, b, c) : a * b + c;
}
template <class T>
__device__ OneLane<T> fma(const OneLane<T>& a, const OneLane<T>& b, const OneLane<T>& c) {
  return {scalar_multiply_add<true>(a.x, b.x, c.x)};
}
template <bool is_fused, class T>
__device__ OneLane<T> multiply_add(T a, const OneLane<T>& b, const OneLane<T>& c) {
  return {scalar_multiply_add<is_fused>(a, b.x, c.x)};
}

template <class T>
using Sixteen = OneLane<T>;

// What tensor cores ask (sums/tensor_core.hpp).

template <class Doubles>
__device__ Doubles load_widened(const float* source) {
  return {static_cast<double>(*source)};
}
__device__ inline void store_rounded(const OneLane<double>& x, float* target) {
  *target = static_cast<float>(x.x);
}
__device__ inline bool operator<(const OneLane<double>& a, const OneLane<double>& b) { return a.x < b.x; }
__device__ inline bool operator==(const OneLane<double>& a, const OneLane<double>& b) { return a.x == b.x; }
__device__ inline bool operator>=(const OneLane<double>& a, const OneLane<double>& b) { return a.x >= b.x; }
__device__ inline bool all(bool condition) { return condition; }
__device__ inline OneLane<double> select(bool condition, const OneLane<double>& yes,
                                         const OneLane<double>& no) {
  return condition ? yes : no;
}
__device__ inline OneLane<double> absolute(const OneLane<double>& x) { return {fabs(x.x)}; }
/// The greater; where x is NaN, x.
__device__ inline OneLane<double> maximum(const OneLane<double>& bound, const OneLane<double>& x) {
  return bound.x > x.x ? bound : x;
}
__device__ inline OneLane<double> truncated(const OneLane<double>& x) { return {trunc(x.x)}; }
__device__ inline OneLane<double> round_to_integer(const OneLane<double>& x) { return {rint(x.x)}; }
/// The 24 leading digits, which are those of fp32.
__device__ inline OneLane<double> cut_to_fp32(const OneLane<double>& x) {
  return {__longlong_as_double(__double_as_longlong(x.x) & -0x2000'0000LL)};
}
/// 2^n for integers n in [-1022, 1023].
__device__ inline OneLane<double> power_of_two(const OneLane<double>& n) {
  return {__longlong_as_double((static_cast<long long>(n.x) + 1023) << 52)};
}
__device__ inline OneLane<std::int32_t> bits_of(const OneLane<float>& x) { return {__float_as_int(x.x)}; }
__device__ inline OneLane<std::int32_t> operator&(const OneLane<std::int32_t>& x, std::int32_t mask) {
  return {x.x & mask};
}
__device__ inline OneLane<std::int32_t> operator>>(const OneLane<std::int32_t>& x, int places) {
  return {x.x >> places};
}
__device__ inline OneLane<std::int32_t> maximum(const OneLane<std::int32_t>& a,
                                                const OneLane<std::int32_t>& b) {
  return a.x > b.x ? a : b;
}
__device__ inline OneLane<double> power_of_two(const OneLane<std::int32_t>& n) {
  return {__longlong_as_double(static_cast<long long>(n.x + 1023) << 52)};
}
/// The exponent of a positive normal number.
__device__ inline OneLane<double> binary_exponent_of(const OneLane<double>& x) {
  return {static_cast<double>((__double_as_longlong(x.x) >> 52) - 1023)};
}

// What exponentials ask (elements/exponential.hpp).

/// 2^(j/8), j the low three bits.
__device__ inline OneLane<double> eighth_roots_of_two(const OneLane<double>& shifted) {
  constexpr double roots[8] = {0x1.0000000000000p+0, 0x1.172b83c7d517bp+0, 0x1.306fe0a31b715p+0,
                               0x1.4bfdad5362a27p+0, 0x1.6a09e667f3bcdp+0, 0x1.8ace5422aa0dbp+0,
                               0x1.ae89f995ad3adp+0, 0x1.d5818dcfba487p+0};
  return {roots[__double_as_longlong(shifted.x) & 7]};
}
/// The number whose exponent field are the bits of x from `lowest_bit` on.
template <int lowest_bit>
__device__ OneLane<double> power_from_bits(const OneLane<double>& x) {
  return {__longlong_as_double(__double_as_longlong(x.x) >> lowest_bit << 52)};
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
