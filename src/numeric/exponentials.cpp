#include "numeric/exponentials.hpp"

#include <bit>
#include <cmath>

#include "numeric/elementary.hpp"
#include "numeric/h100.hpp"
#include "numeric/rounding.hpp"
#include "numeric/xla.hpp"

namespace kda_check::numeric {

namespace {

constexpr float log2_e = 0x1.715476p+0f;

/// Rounding twice is rounding once but for inputs within 2^-53 of a tie, of which exp has none in fp32
/// (tests/kda/kernels/exponential.cpp tries them all).
float rounded_exp(float x) { return static_cast<float>(exp(static_cast<double>(x))); }

float flushed_exp(float x) {
  const float y = rounded_exp(x);
  return y < 0x1p-126f ? 0.0f : y;
}

float scaled_exp2(float x) { return static_cast<float>(exp2(static_cast<double>(x * log2_e))); }

/// x = n ln 2 + r with ln 2 in two parts (the first with 15 bits, so that n times it is exact), Taylor's
/// series to r^6 / 720. Its remainder at r = -ln 2 / 2 is 2 ULP of the result: at most 2.7 off in all.
float polynomial_exp(float x) {
  if (std::isnan(x)) return x;
  if (x > 88.7228394f) return INFINITY;
  if (x < -103.972f) return 0;
  const float n = std::nearbyint(x * log2_e);
  float r = std::fma(n, -0x1.62e4p-1f, x);
  r = std::fma(n, -0x1.7f7d1cp-20f, r);
  float sum = 1.0f / 720;
  for (const float coefficient : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    sum = std::fma(sum, r, coefficient);
  return std::ldexp(sum, static_cast<int>(n));
}

template <float (*function)(float)>
void over(const float* x, float* y, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) y[i] = function(x[i]);
}

}  // namespace

void exponentials(Exponential kind, const float* x, float* y, std::size_t count) {
  switch (kind) {
    case Exponential::exact:
      return over<rounded_exp>(x, y, count);
    case Exponential::libm:
      return over<::expf>(x, y, count);
    case Exponential::cuda:
      return over<h100::expf>(x, y, count);
    case Exponential::cuda_fast:
      return over<h100::fast_expf>(x, y, count);
    case Exponential::exp2_scaled:
      return over<scaled_exp2>(x, y, count);
    case Exponential::flush:
      return over<flushed_exp>(x, y, count);
    case Exponential::poly:
      return over<polynomial_exp>(x, y, count);
    case Exponential::xla:
      return over<xla::exp>(x, y, count);
  }
}

}  // namespace kda_check::numeric
