// exp and exp2 in fp32 as XLA's compiler for CPUs makes them, held to all floats it was asked for.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>

namespace kda_check::numeric::xla {

/// x = n ln 2 + r with ln 2 in two parts, and a polynomial of degree 7; results below 2^-126 are zeros, and
/// so is that of anything below -127.5 ln 2.
inline float exp(float x) {
  constexpr float least = -87.8F, most = 88.8F;
  if (x != x) return x;
  x = x < least ? least : x > most ? most : x;
  float n = __builtin_floorf(__builtin_fmaf(x, 0x1.715476p+0F, 0.5F));
  n = n < -127.0F ? -127.0F : n > 127.0F ? 127.0F : n;
  float r = __builtin_fmaf(n, -0x1.63p-1F, x);
  r = __builtin_fmaf(n, 0x1.bd0106p-13F, r);
  float sum = 0x1.a0d2cep-13F;
  for (const float coefficient : {0x1.6e879cp-10F, 0x1.11121p-7F, 0x1.555382p-5F, 0x1.555554p-3F, 0.5F})
    sum = __builtin_fmaf(sum, r, coefficient);
  sum = __builtin_fmaf(sum, r * r, r) + 1.0F;
  const float scale = std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
  const float y = sum * scale;
  return y < 0x1p-126F ? 0.0F : y;
}

inline float exp2(float x) { return exp(x * 0x1.62e43p-1F); }

}  // namespace kda_check::numeric::xla
