// exp over arrays of fp32, in the ways of the exponential axis: the bits of numeric/exponentials.hpp, packs
// at a time.
#include <algorithm>

#include "kda/kernels/elements/exponential.hpp"
#include "kda/kernels/entries.hpp"
#include "numeric/h100.hpp"
#include "numeric/xla.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

constexpr float log2_e = 0x1.715476p+0F;
constexpr std::size_t piece =
    64;  ///< elements that are done step by step, in loops that a compiler vectorises

/// 4 vectors of doubles' worth of floats: `function` in double precision, rounded once. Beyond the bounds the
/// result is 0 or infinite all the same; a NaN passes both.
constexpr int W = 4;
template <class Function>
KDA_CHECK_INLINE void exponential_pack(const float* x, float* y, double least, double most,
                                       Function function) {
  using Doubles = Lanes<double, W>;
  const Doubles wide = load_widened<Doubles>(x);
  store_rounded(function(maximum(Doubles::broadcast(least), minimum(Doubles::broadcast(most), wide))), y);
}

template <class Function>
KDA_CHECK_INLINE void rounded(const float* x, float* y, std::size_t count, double least, double most,
                              Function function) {
  constexpr std::size_t step = W * lanes_per_vector<double>;
  std::size_t i = 0;
  for (; i + step <= count; i += step) exponential_pack(x + i, y + i, least, most, function);
  if (i == count) return;
  float rest[step] = {};
  std::copy(x + i, x + count, rest);
  exponential_pack(rest, rest, least, most, function);
  std::copy(rest, rest + (count - i), y + i);
}

void exact(const float* x, float* y, std::size_t count) {
  rounded(
      x, y, count, -110.0, 90.0,
      [](const auto& pack) __attribute__((always_inline)) { return exp_in_double(pack); });
}

void power_of_two(const float* x, float* y, std::size_t count) {
  rounded(
      x, y, count, -152.0, 130.0,
      [](const auto& pack) __attribute__((always_inline)) { return exp2_in_double(pack); });
}

// At most `piece` numbers, x and y the same array or not: what is read is out of the way before y is written.

void cuda(const float* x, float* y, std::size_t count) {
  float exponent[piece], scale[piece];
  for (std::size_t i = 0; i < count; ++i) {
    const numeric::h100::ScaledPower power = numeric::h100::scaled_power(x[i]);
    exponent[i] = power.exponent, scale[i] = power.scale;
  }
  for (std::size_t i = 0; i < count; ++i) y[i] = numeric::h100::ex2_ftz(exponent[i]) * scale[i];
}

/// One by one, at most `piece` of them; the results apart from x, so that a compiler may vectorise the loop.
template <float (*function)(float)>
void one_by_one(const float* x, float* y, std::size_t count) {
  float results[piece];
  for (std::size_t i = 0; i < count; ++i) results[i] = function(x[i]);
  std::copy(results, results + count, y);
}

void exp2_scaled(const float* x, float* y, std::size_t count) {
  float power[piece];
  for (std::size_t i = 0; i < count; ++i) power[i] = x[i] * log2_e;
  power_of_two(power, y, count);
}

void flush(const float* x, float* y, std::size_t count) {
  exact(x, y, count);
  for (std::size_t i = 0; i < count; ++i) y[i] = y[i] < 0x1p-126F ? 0.0F : y[i];
}

template <void (*function)(const float*, float*, std::size_t)>
void by_pieces(const float* x, float* y, std::size_t count) {
  for (std::size_t i = 0; i < count; i += piece) function(x + i, y + i, std::min(piece, count - i));
}

}  // namespace

void exponential(Exponential kind, const float* x, float* y, std::size_t count) {
  switch (kind) {
    case Exponential::exact:
      return exact(x, y, count);
    case Exponential::cuda:
      return by_pieces<cuda>(x, y, count);
    case Exponential::cuda_fast:
      return by_pieces<one_by_one<numeric::h100::fast_expf>>(x, y, count);
    case Exponential::exp2_scaled:
      return by_pieces<exp2_scaled>(x, y, count);
    case Exponential::flush:
      return flush(x, y, count);
    case Exponential::xla:
      return by_pieces<one_by_one<numeric::xla::exp>>(x, y, count);
    default:
      return numeric::exponentials(kind, x, y, count);
  }
}

void power_of_two(Exponential kind, const float* x, float* y, std::size_t count) {
  switch (kind) {
    case Exponential::cuda:
      return by_pieces<one_by_one<numeric::h100::ex2>>(x, y, count);
    case Exponential::cuda_fast:
      return by_pieces<one_by_one<numeric::h100::ex2_ftz>>(x, y, count);
    case Exponential::xla:
      return by_pieces<one_by_one<numeric::xla::exp2>>(x, y, count);
    default:
      power_of_two(x, y, count);
  }
  if (kind == Exponential::flush)
    for (std::size_t i = 0; i < count; ++i) y[i] = y[i] < 0x1p-126F ? 0.0F : y[i];
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
