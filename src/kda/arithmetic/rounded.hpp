// One value through a cast point, or past the subnormals.
#pragma once

#include "kda/arithmetic/arithmetic.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::kda {

KDA_CHECK_INLINE constexpr float rounded(Rounding rounding, float x) {
  switch (rounding) {
    case Rounding::none:
      break;
    case Rounding::bf16:
      return numeric::through_bf16(x);
    case Rounding::fp16:
      return numeric::through_fp16(x);
    case Rounding::tf32:
      return numeric::through_tf32(x);
  }
  return x;
}
/// fp64 computations have no cast points.
KDA_CHECK_INLINE constexpr double rounded(Rounding, double x) { return x; }

/// `x`, or the zero that a subnormal number is taken for.
KDA_CHECK_BOTH float flushed(Subnormals subnormals, float x) {
  return subnormals == Subnormals::flush && __builtin_fabsf(x) < 0x1p-126F ? __builtin_copysignf(0.0F, x) : x;
}
/// fp64 computations keep them.
KDA_CHECK_BOTH double flushed(Subnormals, double x) { return x; }

}  // namespace kda_check::kda
