// Element by element within a chunk: cast points, exponentials, and the decays between its rows.
#pragma once

#include "kda/arithmetic/rounded.hpp"
#include "kda/kernels/elements/exponential.hpp"
#include "kda/kernels/lanes/team.hpp"
#include "kda/kernels/table.hpp"
#ifndef __CUDACC__
#include "kda/kernels/elements/prepare.hpp"
#endif

namespace kda_check::kda::KDA_CHECK_ISA {

#ifdef __CUDACC__

/// exp in the ways of the exponential axis, but for those that are a CPU's (kda/arithmetic/gpu_words.hpp).
KDA_CHECK_THREAD_CALLED inline float exponential_of(Exponential kind, float x) {
  constexpr float log2_e = 0x1.715476p+0F;
  const auto within = [](double least, double most, float y) {  // NaN stays
    double wide = static_cast<double>(y);
    wide = most < wide ? most : wide;
    return OneLane<double>{least > wide ? least : wide};
  };
  switch (kind) {
    case Exponential::cuda:
      return expf(x);
    case Exponential::cuda_fast:
      return __expf(x);
    case Exponential::exp2_scaled:
      return static_cast<float>(exp2_in_double(within(-152.0, 130.0, x * log2_e)).x);
    default:
      break;
  }
  const float exact = static_cast<float>(exp_in_double(within(-110.0, 90.0, x)).x);
  return kind == Exponential::flush && exact < 0x1p-126F ? 0.0F : exact;
}
/// CUDA's, below 1 ULP.
KDA_CHECK_THREAD_CALLED inline double exponential_of(Exponential, double x) { return exp(x); }
template <class T>
KDA_CHECK_TEAM void exponential(Exponential kind, const T* x, T* y, std::size_t count) {
  each(count, [=](std::size_t i) { y[i] = exponential_of(kind, x[i]); });
}
template <class T>
KDA_CHECK_TEAM void decays_of(const Operations& operations, const T* x, T* y, std::size_t count) {
  exponential(operations.exponential, x, y, count);
}
template <class T>
KDA_CHECK_TEAM void round_array(Rounding rounding, T* x, std::size_t count) {
  if (rounding != Rounding::none) each(count, [=](std::size_t i) { x[i] = rounded(rounding, x[i]); });
}

#endif

/// G at the end of the chunk.
template <class T>
KDA_CHECK_THREAD const T* end_of(const ChunkBlock<T>& chunk) {
  return chunk.filled_end != nullptr ? chunk.filled_end : chunk.G + (chunk.rows - 1) * chunk.key_stride;
}

/// a[k] - b[k]; no `b`: a[k]; no `a`: -b[k].
template <class T>
KDA_CHECK_THREAD T difference(const T* a, const T* b, std::size_t k) {
  return b == nullptr ? a[k] : a == nullptr ? -b[k] : a[k] - b[k];
}

#ifdef __CUDACC__

/// use(row, k, e^exponent(row, k)) for the channels of `rows` rows, every use behind the others.
template <class T, class Exponent, class... Uses>
KDA_CHECK_TEAM void each_decay(const ChunkBlock<T>& chunk, std::size_t rows, T*, Exponent exponent,
                               Uses... uses) {
  each(rows, chunk.key_dim, [=, &chunk](std::size_t row, std::size_t k) {
    T x = exponent(row, k);
    if (chunk.decay == DecayForm::clamp)
      x = x > chunk.clamp ? chunk.clamp : x < -chunk.clamp ? -chunk.clamp : x;
    const T decay = rounded(chunk.casts.exponentials, exponential_of(chunk.operations.exponential, x));
    (uses(row, k, decay), ...);
  });
}

#else

/// Decays from differences of G, whatever that is a logarithm to.
template <class T>
KDA_CHECK_INLINE void decays_of(const Operations& operations, const T* x, T* y, std::size_t count) {
  if constexpr (sizeof(T) == sizeof(float))
    if (operations.gates != Gates::natural) power_of_two(operations.exponential, x, y, count);
  if (sizeof(T) != sizeof(float) || operations.gates == Gates::natural)
    exponential(operations.exponential, x, y, count);
  if (operations.subnormals == Subnormals::flush)
    for (std::size_t i = 0; i < count; ++i) y[i] = flushed(Subnormals::flush, y[i]);
}

/// Exponents of a row to decays, in place. Out of line, as product() is.
template <class T>
__attribute__((noinline)) void to_decays(const ChunkBlock<T>& chunk, T* line) {
  if (chunk.decay == DecayForm::clamp)
    for (std::size_t k = 0; k < chunk.key_dim; ++k)
      line[k] = line[k] > chunk.clamp ? chunk.clamp : line[k] < -chunk.clamp ? -chunk.clamp : line[k];
  decays_of(chunk.operations, line, line, chunk.key_dim);
  round_array(chunk.casts.exponentials, line, chunk.key_dim);
}

// In chunk/chunk.cpp.
extern template void to_decays(const ChunkBlock<float>&, float*);
extern template void to_decays(const ChunkBlock<double>&, double*);

/// The same of e^-exponent as reciprocals.
template <class T>
__attribute__((noinline)) void to_reciprocal_decays(const ChunkBlock<T>& chunk, T* line) {
  decays_of(chunk.operations, line, line, chunk.key_dim);
  for (std::size_t k = 0; k < chunk.key_dim; ++k) line[k] = reciprocal_of(chunk.operations.special, line[k]);
  round_array(chunk.casts.exponentials, line, chunk.key_dim);
}

extern template void to_reciprocal_decays(const ChunkBlock<float>&, float*);
extern template void to_reciprocal_decays(const ChunkBlock<double>&, double*);

/// use(row, k, e^exponent(row, k)) for the channels of `rows` rows, every use behind the others. `line`:
/// scratch for a row.
template <class T, class Exponent, class... Uses>
KDA_CHECK_TEAM void each_decay(const ChunkBlock<T>& chunk, std::size_t rows, T* line, Exponent exponent,
                               Uses... uses) {
  const std::size_t K = chunk.key_dim;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t k = 0; k < K; ++k) line[k] = exponent(row, k);
    to_decays(chunk, line);
    const auto over_row = [&](auto& use) KDA_CHECK_BODY {
      for (std::size_t k = 0; k < K; ++k) use(row, k, line[k]);
    };
    (over_row(uses), ...);
  }
}

#endif

/// G counts from the row before a block of rows.
KDA_CHECK_THREAD bool starts_before(DecayForm form) {
  return form == DecayForm::factored || form == DecayForm::reciprocal;
}

/// use(row, k, e^exponent(row, k)) of what grows: with DecayForm::reciprocal 1 / e^-exponent.
template <class T, class Exponent, class Use>
KDA_CHECK_TEAM void each_growth(const ChunkBlock<T>& chunk, std::size_t rows, T* line, Exponent exponent,
                                Use use) {
#ifndef __CUDACC__
  if (chunk.decay == DecayForm::reciprocal) {
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t k = 0; k < chunk.key_dim; ++k) line[k] = -exponent(row, k);
      to_reciprocal_decays(chunk, line);
      for (std::size_t k = 0; k < chunk.key_dim; ++k) use(row, k, line[k]);
    }
    return;
  }
#endif
  each_decay(chunk, rows, line, exponent, use);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
