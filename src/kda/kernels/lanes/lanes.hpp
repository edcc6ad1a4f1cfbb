// A pack of independent numbers, one operation at a time: the V lanes of the state, the columns of a chunk.
// Lanes never mix, so how wide a pack is does not change a bit of any result.
//
// The kernels are compiled once for each instruction set (cmake/kernels.cmake); the macros below say which
// one this is. A Vector is what one register holds, a Lanes<T, W> is W of them, unrolled by the compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__FMA__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "numeric/strict.hpp"

#ifndef KDA_CHECK_ISA
#error "kernels are compiled once for each instruction set, which KDA_CHECK_ISA names"
#endif

namespace kda_check::kda::KDA_CHECK_ISA {

#if defined(__AVX512F__)
inline constexpr std::size_t vector_bytes = 64;
#elif defined(__AVX2__) && defined(__FMA__)
inline constexpr std::size_t vector_bytes = 32;
#else
inline constexpr std::size_t vector_bytes = 16;
#endif

template <class T>
struct VectorTypes;
template <>
struct VectorTypes<float> {
  typedef float Vector __attribute__((vector_size(vector_bytes)));
  typedef std::int32_t Integers __attribute__((vector_size(vector_bytes)));
};
template <>
struct VectorTypes<double> {
  typedef double Vector __attribute__((vector_size(vector_bytes)));
  typedef std::int64_t Integers __attribute__((vector_size(vector_bytes)));
};

template <>
struct VectorTypes<std::int32_t> {
  using Vector = VectorTypes<float>::Integers;
};

template <class T>
using VectorOf = typename VectorTypes<T>::Vector;
template <class T>
using IntegersOf = typename VectorTypes<T>::Integers;

template <class T>
inline constexpr std::size_t lanes_per_vector = vector_bytes / sizeof(T);
/// As many floats as a register holds doubles.
typedef float HalfVector __attribute__((vector_size(vector_bytes / 2)));

/// a * b + c in every lane with one rounding. Written with the instruction itself: g++ recognises a loop over
/// the lanes only sometimes. Without one, lane by lane through the library's fma, which is slow and equally
/// exact.
KDA_CHECK_INLINE VectorOf<float> fused(VectorOf<float> a, VectorOf<float> b, VectorOf<float> c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  VectorOf<float> result;
  for (std::size_t lane = 0; lane < lanes_per_vector<float>; ++lane)
    result[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
  return result;
#endif
}
KDA_CHECK_INLINE VectorOf<double> fused(VectorOf<double> a, VectorOf<double> b, VectorOf<double> c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#else
  VectorOf<double> result;
  for (std::size_t lane = 0; lane < lanes_per_vector<double>; ++lane)
    result[lane] = __builtin_fma(a[lane], b[lane], c[lane]);
  return result;
#endif
}

/// Calls body(integral_constant<0>), ..., body(integral_constant<W-1>), unrolled before the optimiser looks
/// at it: arrays indexed this way live in registers.
template <int W, class Body>
KDA_CHECK_INLINE void unrolled(Body body) {
  [&]<int... w>(std::integer_sequence<int, w...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, w>{}), ...);
  }
  (std::make_integer_sequence<int, W>{});
}

template <class T, int W>
struct Lanes {
  using Scalar = T;
  using Vector = VectorOf<T>;
  static constexpr std::size_t count = lanes_per_vector<T> * W;

  Vector part[W];

  static KDA_CHECK_INLINE Lanes zero() {
    Lanes result;
    unrolled<W>([&](auto w) __attribute__((always_inline)) { result.part[w] = Vector{}; });
    return result;
  }
  static KDA_CHECK_INLINE Lanes broadcast(T x) {
    Lanes result;
    unrolled<W>([&](auto w) __attribute__((always_inline)) { result.part[w] = x - Vector{}; });
    return result;
  }
  static KDA_CHECK_INLINE Lanes load(const T* source) {
    Lanes result;
    unrolled<W>([&](auto w) __attribute__((always_inline)) {
      std::memcpy(&result.part[w], source + w * lanes_per_vector<T>, vector_bytes);
    });
    return result;
  }
  KDA_CHECK_INLINE void store(T* target) const {
    unrolled<W>([&](auto w) __attribute__((always_inline)) {
      std::memcpy(target + w * lanes_per_vector<T>, &part[w], vector_bytes);
    });
  }
};

#define KDA_CHECK_LANES_OPERATOR(op)                                                                      \
  template <class T, int W>                                                                               \
  KDA_CHECK_INLINE Lanes<T, W> operator op(const Lanes<T, W>& a, const Lanes<T, W>& b) {                  \
    Lanes<T, W> result;                                                                                   \
    unrolled<W>([&](auto w) __attribute__((always_inline)) { result.part[w] = a.part[w] op b.part[w]; }); \
    return result;                                                                                        \
  }                                                                                                       \
  template <class T, int W>                                                                               \
  KDA_CHECK_INLINE Lanes<T, W> operator op(const Lanes<T, W>& a, T b) {                                   \
    return a op Lanes<T, W>::broadcast(b);                                                                \
  }
KDA_CHECK_LANES_OPERATOR(+)
KDA_CHECK_LANES_OPERATOR(-)
KDA_CHECK_LANES_OPERATOR(*)
KDA_CHECK_LANES_OPERATOR(/)
#undef KDA_CHECK_LANES_OPERATOR

template <class T, int W>
KDA_CHECK_INLINE Lanes<T, W> operator-(const Lanes<T, W>& a) {
  Lanes<T, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) { result.part[w] = -a.part[w]; });
  return result;
}

template <class T, int W>
KDA_CHECK_INLINE Lanes<T, W> fma(const Lanes<T, W>& a, const Lanes<T, W>& b, const Lanes<T, W>& c) {
  Lanes<T, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    result.part[w] = fused(a.part[w], b.part[w], c.part[w]);
  });
  return result;
}

/// a * b + c, rounded once (fused) or after each operation, as the arithmetic of the run says.
template <bool is_fused, class T, int W>
KDA_CHECK_INLINE Lanes<T, W> multiply_add(T a, const Lanes<T, W>& b, const Lanes<T, W>& c) {
  const Lanes<T, W> factor = Lanes<T, W>::broadcast(a);
  if constexpr (is_fused) {
    return fma(factor, b, c);
  } else {
    return factor * b + c;
  }
}

template <bool is_fused>
KDA_CHECK_INLINE float scalar_multiply_add(float a, float b, float c) {
  return is_fused ? __builtin_fmaf(a, b, c) : a * b + c;
}
template <bool is_fused>
KDA_CHECK_INLINE double scalar_multiply_add(double a, double b, double c) {
  return is_fused ? __builtin_fma(a, b, c) : a * b + c;
}

/// A pack of exactly 16 columns, the side of the sub-blocks of a chunk.
template <class T>
inline constexpr int sixteen_width = static_cast<int>(16 / lanes_per_vector<T>);
template <class T>
using Sixteen = Lanes<T, sixteen_width<T>>;

/// fp32 numbers in fp64, and rounded back to fp32.
template <class Doubles>
KDA_CHECK_INLINE Doubles load_widened(const float* source) {
  constexpr std::size_t half = lanes_per_vector<double>;
  Doubles result;
  unrolled<static_cast<int>(Doubles::count / half)>([&](auto w) __attribute__((always_inline)) {
    HalfVector narrow;
    std::memcpy(&narrow, source + w * half, sizeof narrow);
    result.part[w] = __builtin_convertvector(narrow, VectorOf<double>);
  });
  return result;
}
template <int W>
KDA_CHECK_INLINE void store_rounded(const Lanes<double, W>& x, float* target) {
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    const HalfVector narrow = __builtin_convertvector(x.part[w], HalfVector);
    std::memcpy(target + w * lanes_per_vector<double>, &narrow, sizeof narrow);
  });
}

// What the elementary functions in double-double ask of a pack of doubles.

template <int W>
struct Mask {
  IntegersOf<double> part[W];
};

#define KDA_CHECK_LANES_COMPARISON(op)                                                                    \
  template <int W>                                                                                        \
  KDA_CHECK_INLINE Mask<W> operator op(const Lanes<double, W>& a, const Lanes<double, W>& b) {            \
    Mask<W> result;                                                                                       \
    unrolled<W>([&](auto w) __attribute__((always_inline)) { result.part[w] = a.part[w] op b.part[w]; }); \
    return result;                                                                                        \
  }
KDA_CHECK_LANES_COMPARISON(<)
KDA_CHECK_LANES_COMPARISON(>)
KDA_CHECK_LANES_COMPARISON(>=)
KDA_CHECK_LANES_COMPARISON(==)
#undef KDA_CHECK_LANES_COMPARISON

template <int W>
KDA_CHECK_INLINE Lanes<double, W> select(const Mask<W>& condition, const Lanes<double, W>& yes,
                                         const Lanes<double, W>& no) {
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    result.part[w] = condition.part[w] ? yes.part[w] : no.part[w];
  });
  return result;
}

template <int W>
KDA_CHECK_INLINE Lanes<double, W> absolute(const Lanes<double, W>& x) {
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    result.part[w] = (VectorOf<double>)((IntegersOf<double>)x.part[w] & 0x7fff'ffff'ffff'ffff);
  });
  return result;
}

template <int W>
KDA_CHECK_INLINE Lanes<double, W> square_root(const Lanes<double, W>& x) {
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
#if defined(__AVX512F__)
    result.part[w] = _mm512_sqrt_pd(x.part[w]);
#elif defined(__AVX2__) && defined(__FMA__)
    result.part[w] = _mm256_sqrt_pd(x.part[w]);
#else
    for (std::size_t lane = 0; lane < lanes_per_vector<double>; ++lane)
      result.part[w][lane] = __builtin_sqrt(x.part[w][lane]);
#endif
  });
  return result;
}

/// The lesser and the greater; where x is NaN, x.
template <int W>
KDA_CHECK_INLINE Lanes<double, W> minimum(const Lanes<double, W>& bound, const Lanes<double, W>& x) {
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
#if defined(__AVX512F__)
    result.part[w] = _mm512_min_pd(bound.part[w], x.part[w]);
#else
    result.part[w] = bound.part[w] < x.part[w] ? bound.part[w] : x.part[w];
#endif
  });
  return result;
}
template <int W>
KDA_CHECK_INLINE Lanes<double, W> maximum(const Lanes<double, W>& bound, const Lanes<double, W>& x) {
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
#if defined(__AVX512F__)
    result.part[w] = _mm512_max_pd(bound.part[w], x.part[w]);
#else
    result.part[w] = bound.part[w] > x.part[w] ? bound.part[w] : x.part[w];
#endif
  });
  return result;
}

template <int W>
KDA_CHECK_INLINE Lanes<double, W> round_to_integer(const Lanes<double, W>& x) {
  return (x + 0x1.8p52) - 0x1.8p52;
}

/// 2^n for integers n in [-1022, 1023].
template <int W>
KDA_CHECK_INLINE Lanes<double, W> power_of_two(const Lanes<double, W>& n) {
  // Adding 1.5 * 2^52 + 1023 leaves the biased exponent in the low bits of the significand.
  const Lanes<double, W> biased = n + (0x1.8p52 + 1023.0);
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    result.part[w] = (VectorOf<double>)((IntegersOf<double>)biased.part[w] << 52);
  });
  return result;
}

// What the first steps of the correctly rounded functions ask besides.

template <int W>
KDA_CHECK_INLINE Mask<W> both(const Mask<W>& a, const Mask<W>& b) {
  Mask<W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) { result.part[w] = a.part[w] & b.part[w]; });
  return result;
}
template <int W>
KDA_CHECK_INLINE bool all(const Mask<W>& mask) {
  IntegersOf<double> every = mask.part[0];
  unrolled<W>([&](auto w) __attribute__((always_inline)) { every = every & mask.part[w]; });
#if defined(__AVX512F__)
  return _mm512_test_epi64_mask((__m512i)every, (__m512i)every) == 0xff;
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_movemask_pd((__m256d)every) == 0xf;
#else
  return (every[0] & every[1]) != 0;
#endif
}
template <int W>
KDA_CHECK_INLINE bool lane_of(const Mask<W>& mask, std::size_t lane) {
  return mask.part[lane / lanes_per_vector<double>][lane % lanes_per_vector<double>] != 0;
}

/// table[j] in every lane, j the seven bits of x from `lowest_bit` on.
template <int lowest_bit, int W>
KDA_CHECK_INLINE Lanes<double, W> table_entry(const double* table, const Lanes<double, W>& x) {
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    const IntegersOf<double> index = (IntegersOf<double>)x.part[w] >> lowest_bit & 127;
#if defined(__AVX512F__)
    result.part[w] = _mm512_i64gather_pd((__m512i)index, table, sizeof(double));
#elif defined(__AVX2__) && defined(__FMA__)
    result.part[w] = _mm256_i64gather_pd(table, (__m256i)index, sizeof(double));
#else
    for (std::size_t lane = 0; lane < lanes_per_vector<double>; ++lane)
      result.part[w][lane] = table[index[lane]];
#endif
  });
  return result;
}

/// The number whose exponent field are the bits of x from `lowest_bit` on.
template <int lowest_bit, int W>
KDA_CHECK_INLINE Lanes<double, W> power_from_bits(const Lanes<double, W>& x) {
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    result.part[w] = (VectorOf<double>)((IntegersOf<double>)x.part[w] >> lowest_bit << 52);
  });
  return result;
}

/// The significand of positive normal numbers, in [1, 2), and their exponent.
template <int W>
KDA_CHECK_INLINE Lanes<double, W> significand_of(const Lanes<double, W>& x) {
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    result.part[w] =
        (VectorOf<double>)(((IntegersOf<double>)x.part[w] & 0x000f'ffff'ffff'ffff) | 0x3ff0'0000'0000'0000);
  });
  return result;
}
template <int W>
KDA_CHECK_INLINE Lanes<double, W> binary_exponent_of(const Lanes<double, W>& x) {
  Lanes<double, W> result;
  unrolled<W>([&](auto w) __attribute__((always_inline)) {
    result.part[w] = (VectorOf<double>)((IntegersOf<double>)x.part[w] >> 52 | 0x4330'0000'0000'0000);
  });
  return result - (0x1p52 + 1023.0);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
