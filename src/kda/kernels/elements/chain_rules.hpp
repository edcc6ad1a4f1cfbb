// What stands between the gradients of the recurrence and those of the tensors as stored: norm and gate,
// backwards.
#pragma once

#include "kda/kernels/elements/prepare.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// Rows of a . b, up to 8 rows at a time so that their sums overlap.
template <class T>
void row_dots(const RowDotsBlock<T>& block) {
  constexpr std::size_t together = 8;
  for (std::size_t first = 0; first < block.rows; first += together) {
    const std::size_t rows = block.rows - first < together ? block.rows - first : together;
    const Rows<T> a{block.a + first * block.stride, block.stride},
        b{block.b + first * block.stride, block.stride};
    dots_of_rows(sums_of_rows(block.operations), a, b, rows, block.columns, block.dots + first);
  }
}

/// Of the norm of a row whose squares add up to `squares`: that of the forward pass, and elsewhere what a
/// division gives.
template <class T>
KDA_CHECK_INLINE T reciprocal_of_norm(const Operations& operations, T squares, bool by_triton) {
  const Special special = operations.special;
  if (!by_triton && !is_by_lanes(operations.reduction))
    return T(1) / square_root(Special::ieee, squares + T(1e-6));
  if (!by_triton && is_fast(special)) return fast_reciprocal_root(under_root(special, squares));
  return divided(special, T(1), square_root(special, squares + T(1e-6)));
}

template <class T>
void normalise_gradient(const NormGradientBlock<T>& block) {
  const Operations& operations = block.operations;
  const bool by_triton = block.along.registers > 0;
  SumOrder of_squares = sums_of_rows(operations), of_along = of_squares;
  if (by_triton || is_by_lanes(operations.reduction)) of_squares.layout = operations.norm;
  of_along.layout = block.along;
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const std::size_t row = t * block.key_stride;
    const T *const x = block.x + row, *const y = block.y + row;
    T* const gradient = block.gradient + row;
    T squares, along;
    dot_of_row(of_squares, x, x, block.key_dim, &squares);
    dot_of_row(of_along, gradient, y, block.key_dim, &along);
    const T reciprocal = reciprocal_of_norm(operations, squares, by_triton);
    for (std::size_t k = 0; k < block.key_dim; ++k) {
      if (!by_triton) {
        gradient[k] = through_l2_norm(gradient[k], y[k], along, reciprocal);
        continue;
      }
      const T part = along * y[k] * reciprocal;  // r dy - (s y) r
      gradient[k] = operations.is_fused ? scalar_multiply_add<true>(gradient[k], reciprocal, T(0) - part)
                                        : gradient[k] * reciprocal - part;
    }
  }
}

/// 1 / (1 + exp(-sign z)) for each z.
template <class T>
KDA_CHECK_INLINE void sigmoids(const GateGradientBlock<T>& block, const T* z, T sign, std::size_t count,
                               T* result) {
  for (std::size_t i = 0; i < count; ++i) result[i] = -(sign * z[i]);
  exponential(block.exponential, result, result, count);
  for (std::size_t i = 0; i < count; ++i) result[i] = divided(block.special, T(1), T(1) + result[i]);
}

/// Lane l is element d of row l of a times that of row l of b and, if there is one, of a bias.
template <class T>
struct BiasedColumns {
  PairedColumns<T> pairs;
  const T* bias;

  KDA_CHECK_THREAD Factors<Sixteen<T>> operator()(std::size_t d) const {
    const Factors<Sixteen<T>> factors = pairs(d);
    return {factors.a, bias == nullptr ? factors.b : factors.b + bias[d]};
  }
};

/// One token through the gate. In Triton's order A (dg s) with s the sigmoid of y, A = -exp(A_log); or (dg
/// (bound (s (1 - s)))) A with s that of A y.
template <class T>
void gate_elements(const GateGradientBlock<T>& block, const T* x, T* gradient) {
  constexpr std::size_t step = 256;
  T z[step], rising[step], falling[step];
  const bool by_triton = block.keys.registers > 0;
  const T A = block.amplitude, bound = block.lower_bound;
  for (std::size_t first = 0; first < block.key_dim; first += step) {
    const std::size_t count = block.key_dim - first < step ? block.key_dim - first : step;
    T* const dx = gradient + first;
    for (std::size_t i = 0; i < count; ++i) {
      const T y = block.bias != nullptr ? x[first + i] + block.bias[first + i] : x[first + i];
      z[i] = block.lower_bounded ? A * y : y;
    }
    sigmoids(block, z, T(1), count, rising);
    if (block.lower_bounded && !by_triton) sigmoids(block, z, T(-1), count, falling);
    for (std::size_t i = 0; i < count; ++i) {
      const T s = rising[i];
      if (block.lower_bounded)
        dx[i] = by_triton ? dx[i] * (bound * (s * (T(1) - s))) * A
                          : through_bounded(dx[i], A, bound, s, falling[i]);
      else
        dx[i] = by_triton ? -(A * (dx[i] * s)) : through_softplus(dx[i], A, s);
    }
  }
}

/// The terms of dA_log of up to 16 tokens, of dg g, or of the gradient behind a bounded gate times y.
template <class T>
void amplitude_sums(const GateGradientBlock<T>& block, std::size_t from, std::size_t count) {
  using Pack = Sixteen<T>;
  const T* const gate = (block.lower_bounded ? block.x : block.g) + from * block.key_stride;
  const BiasedColumns<T> terms{
      {{block.gradient + from * block.key_stride, block.key_stride}, {gate, block.key_stride}, count},
      block.lower_bounded ? block.bias : nullptr};
  T sums[Pack::count] = {};
  if (block.keys.registers > 0)
    triton_sum<Pack>(block.is_fused, block.keys, false, block.key_dim, terms).store(sums);
  else
    for (std::size_t t = 0; t < count; ++t)
      for (std::size_t k = 0; k < block.key_dim; ++k) {
        const T y = terms.pairs.b(t, k);
        sums[t] = sums[t] + through_slope(terms.pairs.a(t, k), terms.bias != nullptr ? y + terms.bias[k] : y);
      }
  for (std::size_t t = 0; t < count; ++t) block.amplitude_sums[from + t] = sums[t];
}

template <class T>
void gate_gradient(const GateGradientBlock<T>& block) {
  constexpr std::size_t together = Sixteen<T>::count;
  for (std::size_t from = 0; from < block.tokens; from += together) {
    const std::size_t count = block.tokens - from < together ? block.tokens - from : together;
    if (!block.lower_bounded) amplitude_sums(block, from, count);
    for (std::size_t t = from; t < from + count; ++t)
      gate_elements(block, block.x + t * block.key_stride, block.gradient + t * block.key_stride);
    if (block.lower_bounded) amplitude_sums(block, from, count);
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
