// Ways to evaluate exp in fp32. What an H100 does is in numeric/h100.hpp, bit for bit.
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
  xla,          ///< what XLA's compiler for CPUs makes of it (numeric/xla.hpp)
};

/// y[i] = exp(x[i]), one by one; x and y may be the same array. What runs are kernels, with the same bits
/// (kda/kernels/elements/exponentials.cpp).
void exponentials(Exponential kind, const float* x, float* y, std::size_t count);

}  // namespace kda_check::numeric
