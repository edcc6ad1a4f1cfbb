// A GPU's approximate instructions as functions; docs/arithmetic.md, "The H100", has their bits.
#pragma once

namespace kda_check::cuda {

#define KDA_CHECK_INSTRUCTION(name, text)         \
  __device__ inline float name(float x) {         \
    float result;                                 \
    asm(text " %0, %1;" : "=f"(result) : "f"(x)); \
    return result;                                \
  }
#define KDA_CHECK_INSTRUCTION_OF_TWO(name, text)              \
  __device__ inline float name(float x, float y) {            \
    float result;                                             \
    asm(text " %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y)); \
    return result;                                            \
  }

KDA_CHECK_INSTRUCTION(ex2_ftz, "ex2.approx.ftz.f32")
KDA_CHECK_INSTRUCTION(ex2, "ex2.approx.f32")
KDA_CHECK_INSTRUCTION(lg2_ftz, "lg2.approx.ftz.f32")
KDA_CHECK_INSTRUCTION(lg2, "lg2.approx.f32")
KDA_CHECK_INSTRUCTION(rcp_ftz, "rcp.approx.ftz.f32")
KDA_CHECK_INSTRUCTION(rcp, "rcp.approx.f32")
KDA_CHECK_INSTRUCTION(rsqrt_ftz, "rsqrt.approx.ftz.f32")
KDA_CHECK_INSTRUCTION(rsqrt, "rsqrt.approx.f32")
KDA_CHECK_INSTRUCTION(sqrt_ftz, "sqrt.approx.ftz.f32")
KDA_CHECK_INSTRUCTION(sqrt_approx, "sqrt.approx.f32")
KDA_CHECK_INSTRUCTION(tanh_approx, "tanh.approx.f32")
KDA_CHECK_INSTRUCTION_OF_TWO(div_full_ftz, "div.full.ftz.f32")
KDA_CHECK_INSTRUCTION_OF_TWO(div_full, "div.full.f32")

#undef KDA_CHECK_INSTRUCTION
#undef KDA_CHECK_INSTRUCTION_OF_TWO

}  // namespace kda_check::cuda
