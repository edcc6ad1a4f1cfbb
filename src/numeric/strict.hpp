// What every translation unit that computes must be compiled with. The rounding of each operation is a fact
// of the source here, so the flags that let a compiler change it are refused at compile time;
// `environment.hpp` checks the rest (rounding mode, flushing of subnormals, contraction) when the program
// starts.
#pragma once

#include <cfloat>

#ifdef __FAST_MATH__
#error "kda-check measures rounding errors: compile without -ffast-math"
#endif

static_assert(FLT_EVAL_METHOD == 0, "float and double expressions must be evaluated in their own format");

/// Small functions used inside the kernels. The kernels are compiled once for each instruction set; were such
/// a function emitted out of line, the linker would keep one copy and all callers would run that one's
/// instructions.
#define KDA_CHECK_INLINE __attribute__((always_inline)) inline

/// The same for what the CPU and a GPU compute alike, from one source. (What is constexpr nvcc takes for both
/// by itself.) _CALLED: for what is rarely needed, out of line, and not in kernels.
#ifdef __CUDACC__
#define KDA_CHECK_BOTH __host__ __device__ KDA_CHECK_INLINE
#define KDA_CHECK_BOTH_CALLED __host__ __device__ inline
#else
#define KDA_CHECK_BOTH KDA_CHECK_INLINE
#define KDA_CHECK_BOTH_CALLED inline
#endif
