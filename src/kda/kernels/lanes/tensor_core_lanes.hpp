// What the sums of tensor cores ask of packs besides: digits that are cut off, and exponents, which are
// integers.
#pragma once

#include "kda/kernels/lanes/lanes.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// Towards zero, for |x| < 2^51, infinities and NaN.
template <int W>
KDA_CHECK_INLINE Lanes<double, W> truncated(const Lanes<double, W>& x) {
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
#if defined(__AVX512F__)
    result.part[w] = _mm512_roundscale_pd(x.part[w], _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
#else
    result.part[w] = _mm256_round_pd(x.part[w], _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
#endif
  });
  return result;
#else
  const Lanes<double, W> size = absolute(x), nearest = round_to_integer(size);
  const Lanes<double, W> below = select(nearest > size, nearest - 1.0, nearest);
  return select(x < Lanes<double, W>::zero(), -below, below);
#endif
}

/// The 24 leading digits, which are those of fp32.
template <int W>
KDA_CHECK_INLINE Lanes<double, W> cut_to_fp32(const Lanes<double, W>& x) {
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    result.part[w] = (VectorOf<double>)((IntegersOf<double>)x.part[w] & -0x2000'0000LL);
  });
  return result;
}

template <int W>
KDA_CHECK_INLINE Lanes<std::int32_t, W> bits_of(const Lanes<float, W>& x) {
  Lanes<std::int32_t, W> result;
  unrolled<W>([&](auto w)
                  __attribute__((always_inline)) { result.part[w] = (VectorOf<std::int32_t>)x.part[w]; });
  return result;
}
template <int W>
KDA_CHECK_INLINE Lanes<std::int32_t, W> operator&(const Lanes<std::int32_t, W>& x, std::int32_t mask) {
  Lanes<std::int32_t, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) { result.part[w] = x.part[w] & mask; });
  return result;
}
template <int W>
KDA_CHECK_INLINE Lanes<std::int32_t, W> operator>>(const Lanes<std::int32_t, W>& x, int places) {
  Lanes<std::int32_t, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) { result.part[w] = x.part[w] >> places; });
  return result;
}
template <int W>
KDA_CHECK_INLINE Lanes<std::int32_t, W> maximum(const Lanes<std::int32_t, W>& a,
                                                const Lanes<std::int32_t, W>& b) {
  Lanes<std::int32_t, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
#if defined(__AVX512F__)
    result.part[w] = (VectorOf<std::int32_t>)_mm512_max_epi32((__m512i)a.part[w], (__m512i)b.part[w]);
#else
    result.part[w] = a.part[w] > b.part[w] ? a.part[w] : b.part[w];
#endif
  });
  return result;
}
template <int W>
KDA_CHECK_INLINE Lanes<std::int32_t, W> truncated(const Lanes<float, W>& x) {
  Lanes<std::int32_t, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    result.part[w] = __builtin_convertvector(x.part[w], VectorOf<std::int32_t>);
  });
  return result;
}
/// Whether every lane is in [least, most], or below `nothing`.
template <int W>
KDA_CHECK_INLINE bool are_within(const Lanes<std::int32_t, W>& x, std::int32_t least, std::int32_t most,
                                 std::int32_t nothing) {
  VectorOf<std::int32_t> every = ~VectorOf<std::int32_t>{};
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    every &= ((x.part[w] >= least) & (x.part[w] <= most)) | (x.part[w] < nothing);
  });
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)every) == 0xffff;
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_movemask_epi8((__m256i)every) == -1;
#else
  return (every[0] & every[1] & every[2] & every[3]) != 0;
#endif
}
/// Whether every lane is finite, and its last twelve bits are zeros.
template <int W>
KDA_CHECK_INLINE bool has_twelve_bits(const Lanes<float, W>& x) {
  const Lanes<std::int32_t, W> magnitude = bits_of(x) & 0x7fff'ffff;
  return are_within(magnitude, 0, 0x7f7f'ffff, 0) && are_within(magnitude & 0xfff, 0, 0, 0);
}
/// The same of integers.
KDA_CHECK_INLINE Sixteen<float> cut_to_fp32(const Sixteen<std::int32_t>& n) {
#if defined(__AVX512F__)
  Sixteen<float> result;
  result.part[0] = _mm512_cvt_roundepi32_ps((__m512i)n.part[0], _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  return result;
#else
  typedef std::int32_t Half __attribute__((vector_size(vector_bytes / 2)));
  Sixteen<double> wide;
  unrolled<sixteen_width<double>>([&](auto w) __attribute__((always_inline)) {
    Half half;
    std::memcpy(&half, reinterpret_cast<const char*>(&n.part[w / 2]) + w % 2 * sizeof half, sizeof half);
    wide.part[w] = __builtin_convertvector(half, VectorOf<double>);
  });
  float result[16];
  store_rounded(cut_to_fp32(wide), result);
  return Sixteen<float>::load(result);
#endif
}
/// Whether a + b is no more than 31 bits in any lane.
template <int W>
KDA_CHECK_INLINE bool fits(const Lanes<std::int32_t, W>& a, const Lanes<std::int32_t, W>& b) {
  Lanes<std::int32_t, W> carried;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    typedef std::uint32_t Unsigned __attribute__((vector_size(vector_bytes)));
    const auto x = (Unsigned)a.part[w], y = (Unsigned)b.part[w], sum = x + y;
    carried.part[w] = (VectorOf<std::int32_t>)((x ^ sum) & (y ^ sum));
  });
  return are_within(carried, 0, 0x7fff'ffff, -0x7fff'ffff - 1);
}

/// Integers of 16 bits, two in each lane.
typedef std::int16_t Halves __attribute__((vector_size(vector_bytes)));
template <int W>
KDA_CHECK_INLINE Lanes<std::int32_t, W> sum_of_halves(const Lanes<std::int32_t, W>& a,
                                                      const Lanes<std::int32_t, W>& b) {
  Lanes<std::int32_t, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    result.part[w] = (VectorOf<std::int32_t>)((Halves)a.part[w] + (Halves)b.part[w]);
  });
  return result;
}
template <int W>
KDA_CHECK_INLINE Lanes<std::int32_t, W> maximum_of_halves(const Lanes<std::int32_t, W>& a,
                                                          const Lanes<std::int32_t, W>& b) {
  Lanes<std::int32_t, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
#if defined(__AVX512F__)
    result.part[w] = (VectorOf<std::int32_t>)_mm512_max_epi16((__m512i)a.part[w], (__m512i)b.part[w]);
#else
    const auto x = (Halves)a.part[w], y = (Halves)b.part[w];
    result.part[w] = (VectorOf<std::int32_t>)(x > y ? x : y);
#endif
  });
  return result;
}
template <int W>
KDA_CHECK_INLINE Lanes<std::int32_t, W> lower_halves(const Lanes<std::int32_t, W>& x) {
  Lanes<std::int32_t, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) { result.part[w] = x.part[w] << 16 >> 16; });
  return result;
}
/// 2^n for n in [-126, 127], in fp32.
KDA_CHECK_INLINE Sixteen<float> float_power_of_two(const Sixteen<std::int32_t>& n) {
  Sixteen<float> result;
  unrolled<sixteen_width<float>>([&](auto w) __attribute__((always_inline)) {
    result.part[w] = (VectorOf<float>)((n.part[w] + 127) << 23);
  });
  return result;
}
/// 2^n for n in [-1022, 1023].
KDA_CHECK_INLINE Sixteen<double> power_of_two(const Sixteen<std::int32_t>& n) {
  Sixteen<double> result;
  unrolled<sixteen_width<double>>([&](auto w) __attribute__((always_inline)) {
    const auto biased = n.part[w / 2] + 1023;
    IntegersOf<double> wide;
#if defined(__AVX512F__)
    wide = (IntegersOf<double>)_mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64((__m512i)biased, w % 2));
#elif defined(__AVX2__) && defined(__FMA__)
    wide = (IntegersOf<double>)_mm256_cvtepi32_epi64(_mm256_extracti128_si256((__m256i)biased, w % 2));
#else
    constexpr std::size_t first = w % 2 * lanes_per_vector<double>;
    for (std::size_t lane = 0; lane < lanes_per_vector<double>; ++lane) wide[lane] = biased[first + lane];
#endif
    result.part[w] = (VectorOf<double>)(wide << 52);
  });
  return result;
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
