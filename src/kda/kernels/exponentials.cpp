// exp over arrays of fp32, in the ways of the exponential axis: the bits of numeric/exponentials.hpp, packs
// at a time.
#include <algorithm>

#include "kda/kernels/entries.hpp"
#include "kda/kernels/exponential.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

typedef float HalfVector __attribute__((vector_size(vector_bytes / 2)));

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
  constexpr std::size_t half = lanes_per_vector<double>;
  Doubles wide;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    HalfVector narrow;
    std::memcpy(&narrow, x + w * half, sizeof narrow);
    wide.part[w] = __builtin_convertvector(narrow, VectorOf<double>);
  });
  const Doubles result =
      function(maximum(Doubles::broadcast(least), minimum(Doubles::broadcast(most), wide)));
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    const HalfVector narrow = __builtin_convertvector(result.part[w], HalfVector);
    std::memcpy(y + w * half, &narrow, sizeof narrow);
  });
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

/// At most `piece` numbers: ex2.approx.ftz.f32 (numeric::h100::ex2_ftz).
void ex2_ftz(const float* x, float* y, std::size_t count) {
  constexpr std::int32_t one = 1 << 23, fractions = one - 1, least_normal = 0x0080'0000;
  const std::uint32_t* const differences = numeric::h100::ex2_differences();
  std::int32_t scaled[piece];
  float significand[piece];
  for (std::size_t i = 0; i < count; ++i) {
    // Bits finer than 2^-23 are dropped; a negative x is then taken by one's complement.
    const float magnitude = __builtin_fabsf(x[i]);
    const auto a = static_cast<std::int32_t>((magnitude < 128.0F ? magnitude : 128.0F) * 0x1p23F);
    scaled[i] = x[i] >= 0 ? a : (a & fractions) == 0 ? -a : -a - 1;
    significand[i] = static_cast<float>(scaled[i] & fractions) * 0x1p-23F;
  }
  power_of_two(significand, significand, count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t n = scaled[i], fraction = n & fractions;
    const auto difference =
        static_cast<std::int32_t>(differences[fraction / 16] >> fraction % 16 * 2 & 3) - 1;
    const std::int32_t bits =
        __builtin_bit_cast(std::int32_t, significand[i]) + difference + (n & ~fractions);
    float result = __builtin_bit_cast(float, bits < least_normal ? 0 : bits);
    result = x[i] >= 128.0F ? __builtin_inff() : result;
    y[i] = x[i] != x[i] ? __builtin_bit_cast(float, 0x7fff'ffff) : result;
  }
}

void cuda(const float* x, float* y, std::size_t count) {
  float exponent[piece], scale[piece];
  for (std::size_t i = 0; i < count; ++i) {
    float t = __builtin_fmaf(x[i], __builtin_bit_cast(float, 0x3bbb'989d), 0.5F);
    t = t > 0 ? (t < 1 ? t : 1.0F) : 0.0F;  // NaN gives 0
    // Rounded towards minus infinity, to an integer between 2^23 and 2^24.
    const auto integer = static_cast<std::int32_t>(static_cast<double>(t) * 252.0 + 12582913.0);
    const auto r = static_cast<float>(integer);
    const float s = r + -12583039.0F;
    float f = __builtin_fmaf(x[i], __builtin_bit_cast(float, 0x3fb8'aa3b), -s);
    exponent[i] = __builtin_fmaf(x[i], __builtin_bit_cast(float, 0x32a5'7060), f);
    scale[i] = __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, r) << 23);
  }
  ex2_ftz(exponent, exponent, count);
  for (std::size_t i = 0; i < count; ++i) y[i] = exponent[i] * scale[i];
}

void cuda_fast(const float* x, float* y, std::size_t count) {
  float power[piece], exponent[piece];
  for (std::size_t i = 0; i < count; ++i) {
    power[i] = x[i] * log2_e;
    exponent[i] = power[i] < -126.0F ? power[i] * 0.5F : power[i];
  }
  ex2_ftz(exponent, exponent, count);
  for (std::size_t i = 0; i < count; ++i) y[i] = power[i] < -126.0F ? exponent[i] * exponent[i] : exponent[i];
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
      return by_pieces<cuda_fast>(x, y, count);
    case Exponential::exp2_scaled:
      return by_pieces<exp2_scaled>(x, y, count);
    case Exponential::flush:
      return flush(x, y, count);
    default:
      return numeric::exponentials(kind, x, y, count);
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
