// exp over arrays, in the ways of the exponential axis.
//
// fp32 exact: correctly rounded. It is evaluated in double precision (error below 2^-52 before the last step)
// and rounded once; tests/kda/exponential enumerates every float and finds no other result, so this is the
// exact exponential, on every machine the same. fp64 exact: correctly rounded too (numeric/elementary.hpp);
// libm: the C library's exp, which depends on the library and on the processor (glibc: below 0.511 ULP).
#pragma once

#include "kda/kernels/lanes/team.hpp"
#include "numeric/exponentials.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

using numeric::Exponential;

#ifndef __CUDACC__
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
#endif

/// Leaves an integer 8 n + j in the low bits of a sum, so that the shift below leaves the exponent field of
/// 2^n.
inline constexpr double eighths_bias = 0x1.8p52 + 8.0 * 1023.0;

/// 2^n 2^(j/8) exp(r), n and j in `shifted`, |r| <= ln 2 / 16: Taylor's series to r^8/8!, whose remainder is
/// below 2^-59.
template <class Doubles>
KDA_CHECK_THREAD Doubles power_of_eighths(const Doubles& shifted, const Doubles& r) {
  Doubles sum = Doubles::broadcast(1.0 / 40320.0);
  constexpr double inverse_factorials[] = {1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0,
                                           1.0 / 6.0,    0.5,         1.0};
  for (const double coefficient : inverse_factorials) sum = fma(sum, r, Doubles::broadcast(coefficient));
  const Doubles root = eighth_roots_of_two(shifted);
  return fma(root, r * sum, root) * power_from_bits<3>(shifted);
}

/// exp(x) for |x| <= 110 in double precision: x = (8 n + j) ln 2 / 8 + r.
template <class Doubles>
KDA_CHECK_THREAD Doubles exp_in_double(const Doubles& x) {
  const Doubles shifted = fma(x, Doubles::broadcast(0x1.71547652b82fep+3), Doubles::broadcast(eighths_bias));
  const Doubles eighths = shifted - eighths_bias;
  // ln 2 / 8 = head with 40 bits + tail: the product with the head is exact, and so is the first subtraction.
  Doubles r = fma(-eighths, Doubles::broadcast(0x1.62e42fefa2000p-4), x);
  r = fma(-eighths, Doubles::broadcast(0x1.9ef35793c7673p-44), r);
  return power_of_eighths(shifted, r);
}

/// 2^x for |x| <= 160, in the same way: x = (8 n + j) / 8 + r / ln 2, whose fraction is exact.
template <class Doubles>
KDA_CHECK_THREAD Doubles exp2_in_double(const Doubles& x) {
  const Doubles shifted = fma(x, Doubles::broadcast(8.0), Doubles::broadcast(eighths_bias));
  const Doubles eighths = shifted - eighths_bias;
  const Doubles fraction = fma(-eighths, Doubles::broadcast(0.125), x);
  return power_of_eighths(shifted, fraction * 0x1.62e42fefa39efp-1);
}

#ifndef __CUDACC__
/// y[i] = exp(x[i]); x and y may be the same array. In exponentials.cpp.
void exponential(Exponential kind, const float* x, float* y, std::size_t count);
void exponential(Exponential kind, const double* x, double* y, std::size_t count);
/// y[i] = 2^x[i], in the ways that have it: cuda is exp2f, cuda-fast ex2.approx.ftz as Triton's exp2, the
/// others are correctly rounded. In exponentials.cpp.
void power_of_two(Exponential kind, const float* x, float* y, std::size_t count);

/// y[i] = ln(1 + x[i]); x and y may be the same array. fp64: correctly rounded; fp32: that of fp64, rounded.
/// In elements.cpp.
void log1p(const float* x, float* y, std::size_t count);
void log1p(const double* x, double* y, std::size_t count);
#endif

}  // namespace kda_check::kda::KDA_CHECK_ISA
