// One instruction of a tensor core, c += a b with fp32 sums, on the registers of a warp: PTX ISA, "Matrix
// fragments for mma.m16n8k16" and "... m16n8k8" say what a lane holds.
#pragma once

#include <cstdint>

#include "kda/arithmetic/cast_points.hpp"

namespace kda_check::cuda {

#define KDA_CHECK_MMA(shape)                                                                                \
  asm volatile("mma.sync.aligned." shape " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

/// Of `format`: bf16 and fp16 two to a register, 16 x 16 by 16 x 8; tf32 16 x 8 by 8 x 8.
template <kda::Rounding format>
__device__ void multiply_fragments(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                   std::uint32_t b1) {
  static_assert(format != kda::Rounding::none);
  if constexpr (format == kda::Rounding::bf16)
    KDA_CHECK_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
  else if constexpr (format == kda::Rounding::fp16)
    KDA_CHECK_MMA("m16n8k16.row.col.f32.f16.f16.f32");
  else
    KDA_CHECK_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
}

#undef KDA_CHECK_MMA

}  // namespace kda_check::cuda
