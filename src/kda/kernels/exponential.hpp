// exp over arrays, in the ways of the exponential axis.
//
// fp32 exact: correctly rounded. It is evaluated in double precision (error below 2^-52 before the last step)
// and rounded once; tests/kda/exponential enumerates every float and finds no other result, so this is the
// exact exponential, on every machine the same. fp64 exact: correctly rounded too (numeric/elementary.hpp);
// libm: the C library's exp, which depends on the library and on the processor (glibc: below 0.511 ULP).
#pragma once

#include "kda/kernels/lanes.hpp"
#include "numeric/exponentials.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

using numeric::Exponential;

typedef float HalfVector __attribute__((vector_size(vector_bytes / 2)));

inline constexpr double eighth_roots[8] = {0x1.0000000000000p+0, 0x1.172b83c7d517bp+0, 0x1.306fe0a31b715p+0,
                                           0x1.4bfdad5362a27p+0, 0x1.6a09e667f3bcdp+0, 0x1.8ace5422aa0dbp+0,
                                           0x1.ae89f995ad3adp+0, 0x1.d5818dcfba487p+0};

/// 2^(j/8) for j in the low three bits of each lane.
template <int W>
KDA_CHECK_INLINE Lanes<double, W> eighth_roots_of_two(const Lanes<double, W>& shifted) {
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    const auto bits = (IntegersOf<double>)shifted.part[w];
#if defined(__AVX512F__)
    VectorOf<double> all;
    std::memcpy(&all, eighth_roots, sizeof all);
    result.part[w] = _mm512_permutexvar_pd((__m512i)bits, all);
#else
    for (std::size_t lane = 0; lane < lanes_per_vector<double>; ++lane)
      result.part[w][lane] = eighth_roots[static_cast<std::size_t>(bits[lane]) & 7];
#endif
  });
  return result;
}

/// 2^n from 8 (n + 1023) + j in the low bits of each lane.
template <int W>
KDA_CHECK_INLINE Lanes<double, W> power_of_two_from_eighths(const Lanes<double, W>& shifted) {
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    result.part[w] = (VectorOf<double>)(((IntegersOf<double>)shifted.part[w] >> 3) << 52);
  });
  return result;
}

/// exp(x) for |x| <= 110 in double precision: x = (8 n + j) ln 2 / 8 + r, exp(x) = 2^n 2^(j/8) exp(r), with
/// Taylor's series to r^8/8!, whose remainder is below 2^-59 for |r| <= ln 2 / 16.
template <int W>
KDA_CHECK_INLINE Lanes<double, W> exp_in_double(const Lanes<double, W>& x) {
  using Doubles = Lanes<double, W>;
  // The low bits of this sum are the integer 8 n + j, biased so that the shift below leaves the exponent
  // field of 2^n.
  const Doubles shifted =
      fma(x, Doubles::broadcast(0x1.71547652b82fep+3), Doubles::broadcast(0x1.8p52 + 8.0 * 1023.0));
  const Doubles eighths = shifted - (0x1.8p52 + 8.0 * 1023.0);
  // ln 2 / 8 = head with 40 bits + tail: the product with the head is exact, and so is the first subtraction.
  Doubles r = fma(-eighths, Doubles::broadcast(0x1.62e42fefa2000p-4), x);
  r = fma(-eighths, Doubles::broadcast(0x1.9ef35793c7673p-44), r);
  Doubles sum = Doubles::broadcast(1.0 / 40320.0);
  constexpr double inverse_factorials[] = {1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0,
                                           1.0 / 6.0,    0.5,         1.0};
  for (const double coefficient : inverse_factorials) sum = fma(sum, r, Doubles::broadcast(coefficient));
  const Doubles root = eighth_roots_of_two(shifted);
  return fma(root, r * sum, root) * power_of_two_from_eighths(shifted);
}

/// exp of 2 * W vectors of doubles' worth of floats.
template <int W>
KDA_CHECK_INLINE void exponential_pack(const float* x, float* y) {
  using Doubles = Lanes<double, W>;
  constexpr std::size_t half = lanes_per_vector<double>;
  Doubles wide;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    HalfVector narrow;
    std::memcpy(&narrow, x + w * half, sizeof narrow);
    wide.part[w] = __builtin_convertvector(narrow, VectorOf<double>);
  });
  // Beyond these the result is 0 or infinite all the same; a NaN passes both.
  wide = minimum(Doubles::broadcast(90.0), wide);
  wide = maximum(Doubles::broadcast(-110.0), wide);
  const Doubles result = exp_in_double(wide);
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    const HalfVector narrow = __builtin_convertvector(result.part[w], HalfVector);
    std::memcpy(y + w * half, &narrow, sizeof narrow);
  });
}

/// y[i] = exp(x[i]); x and y may be the same array. In elements.cpp.
void exponential(Exponential kind, const float* x, float* y, std::size_t count);
void exponential(Exponential kind, const double* x, double* y, std::size_t count);

/// y[i] = ln(1 + x[i]); x and y may be the same array. fp64: correctly rounded; fp32: that of fp64, rounded.
/// In elements.cpp.
void log1p(const float* x, float* y, std::size_t count);
void log1p(const double* x, double* y, std::size_t count);

}  // namespace kda_check::kda::KDA_CHECK_ISA
