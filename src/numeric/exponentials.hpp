// Ways to evaluate exp in fp32. What the H100 does is measured, bit for bit: docs/arithmetic.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kda_check::numeric {

enum class Exponential : std::uint8_t {
  exact,        ///< correctly rounded
  libm,         ///< the C library's: its bits may be others with another library or processor
  cuda,         ///< expf of CUDA on an H100: at most 2 ULP off
  cuda_fast,    ///< __expf, and Triton's tl.exp: ex2.approx of the rounded product x log2(e)
  exp2_scaled,  ///< 2^(x log2(e)), the product rounded to fp32, the power exact
  flush,        ///< correctly rounded, subnormal results flushed to zero
  poly,         ///< range reduction and a polynomial of degree 6 in fp32, as vector libraries of CPUs do
};

/// y[i] = exp(x[i]), one by one; x and y may be the same array. What runs are kernels, with the same bits
/// (kda/kernels/exponentials.cpp).
void exponentials(Exponential kind, const float* x, float* y, std::size_t count);

/// ex2.approx.ftz.f32 and what nvcc makes of it, as an H100 computes them (measured on all 2^32 inputs).
namespace h100 {
float ex2_ftz(float x);  ///< 2^x; subnormal inputs count as zero, subnormal results are flushed
float ex2(float x);      ///< ex2.approx.f32 and exp2f: gradual underflow
float expf(float x);
float fast_expf(float x);  ///< __expf

/// What ex2.approx adds to the correctly rounded 2^(i / 2^23), in last places plus one: two bits for each i,
/// sixteen to a word, the lowest first.
const std::uint32_t* ex2_differences();
}  // namespace h100

}  // namespace kda_check::numeric
