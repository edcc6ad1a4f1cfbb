// What stands between the gradients of the recurrence and those of the tensors as stored: norm and gate,
// backwards.
#pragma once

#include "kda/kernels/elements/gradient_rules.hpp"
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

/// r dy - (s y) r, s = dy . y, with the reciprocal norm of the forward pass.
template <class T>
void triton_normalise_gradient(const NormGradientBlock<T>& block) {
  const Operations& operations = block.operations;
  SumOrder forwards = sums_of_rows(operations), backwards = forwards;
  forwards.layout = operations.norm, backwards.layout = block.along;
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const std::size_t row = t * block.key_stride;
    const T *const x = block.x + row, *const y = block.y + row;
    T* const gradient = block.gradient + row;
    T squares, along;
    dot_of_row(forwards, x, x, block.key_dim, &squares);
    dot_of_row(backwards, gradient, y, block.key_dim, &along);
    const T reciprocal =
        divided(operations.special, T(1), square_root(operations.special, squares + T(1e-6)));
    for (std::size_t k = 0; k < block.key_dim; ++k) {
      const T part = along * y[k] * reciprocal;
      gradient[k] = operations.is_fused ? scalar_multiply_add<true>(gradient[k], reciprocal, T(0) - part)
                                        : gradient[k] * reciprocal - part;
    }
  }
}

/// Of the norm of a row whose squares add up to `squares`: what gpu-chunk on tensor cores leaves of the
/// forward pass, and elsewhere what a division gives.
template <class T>
KDA_CHECK_INLINE T reciprocal_of_norm(const Operations& operations, T squares) {
  if (!is_by_lanes(operations.reduction)) return T(1) / square_root(Special::ieee, squares + T(1e-6));
  if (is_fast(operations.special)) return fast_reciprocal_root(under_root(operations.special, squares));
  return divided(operations.special, T(1), square_root(operations.special, squares + T(1e-6)));
}

template <class T>
void normalise_gradient(const NormGradientBlock<T>& block) {
  if (block.along.registers > 0) return triton_normalise_gradient(block);
  SumOrder of_squares = sums_of_rows(block.operations);
  if (is_by_lanes(of_squares.reduction)) of_squares.layout = block.operations.norm;
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const std::size_t row = t * block.key_stride;
    const T *const x = block.x + row, *const y = block.y + row;
    T* const gradient = block.gradient + row;
    T squares, along;
    dot_of_row(of_squares, x, x, block.key_dim, &squares);
    dot_of_row(sums_of_rows(block.operations), gradient, y, block.key_dim, &along);
    const T reciprocal = reciprocal_of_norm(block.operations, squares);
    for (std::size_t k = 0; k < block.key_dim; ++k)
      gradient[k] = through_l2_norm(gradient[k], y[k], along, reciprocal);
  }
}

/// 1 / (1 + exp(-sign z)) for each z.
template <class T>
KDA_CHECK_INLINE void sigmoids(Exponential kind, const T* z, T sign, std::size_t count, T* result) {
  for (std::size_t i = 0; i < count; ++i) result[i] = -(sign * z[i]);
  exponential(kind, result, result, count);
  for (std::size_t i = 0; i < count; ++i) result[i] = sigmoid_from(result[i]);
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

/// Of one token in Triton's order: A (dg s) with s the sigmoid of y, A = -exp(A_log); or (dg (bound (s
/// (1 - s)))) A with s that of A y.
template <class T>
void triton_gate_elements(const GateGradientBlock<T>& block, const T* x, T* gradient) {
  constexpr std::size_t step = 256;
  T sigmoid[step];
  for (std::size_t first = 0; first < block.key_dim; first += step) {
    const std::size_t count = block.key_dim - first < step ? block.key_dim - first : step;
    T* const dx = gradient + first;
    for (std::size_t i = 0; i < count; ++i) {
      const T y = block.bias != nullptr ? x[first + i] + block.bias[first + i] : x[first + i];
      sigmoid[i] = -(block.lower_bounded ? block.amplitude * y : y);
    }
    exponential(block.exponential, sigmoid, sigmoid, count);
    for (std::size_t i = 0; i < count; ++i) {
      const T s = divided(block.special, T(1), T(1) + sigmoid[i]);
      dx[i] = block.lower_bounded ? dx[i] * (block.lower_bound * (s * (T(1) - s))) * block.amplitude
                                  : -(block.amplitude * (dx[i] * s));
    }
  }
}

template <class T>
void triton_gate_gradient(const GateGradientBlock<T>& block) {
  using Pack = Sixteen<T>;
  const std::size_t stride = block.key_stride;
  for (std::size_t from = 0; from < block.tokens; from += Pack::count) {
    const std::size_t count = block.tokens - from < Pack::count ? block.tokens - from : Pack::count;
    T* const gradient = block.gradient + from * stride;
    const T *const x = block.x + from * stride, *const g = block.g + from * stride;
    const auto sum = [&] {
      const Rows<T> of_gradient{gradient, stride}, of_gate{block.lower_bounded ? x : g, stride};
      const BiasedColumns<T> terms{{of_gradient, of_gate, count}, block.lower_bounded ? block.bias : nullptr};
      T sums[Pack::count];
      triton_sum<Pack>(block.is_fused, block.keys, false, block.key_dim, terms).store(sums);
      for (std::size_t t = 0; t < count; ++t) block.amplitude_sums[from + t] = sums[t];
    };
    if (!block.lower_bounded) sum();  // of dg g; else of the gradient times y
    for (std::size_t t = 0; t < count; ++t)
      triton_gate_elements(block, x + t * stride, gradient + t * stride);
    if (block.lower_bounded) sum();
  }
}

template <class T>
void gate_gradient(const GateGradientBlock<T>& block) {
  if (block.keys.registers > 0) return triton_gate_gradient(block);
  constexpr std::size_t step = 256;
  T y[step], z[step], rising[step], falling[step];
  for (std::size_t t = 0; t < block.tokens; ++t) {
    T amplitude_sum = 0;
    for (std::size_t first = 0; first < block.key_dim; first += step) {
      const std::size_t count = block.key_dim - first < step ? block.key_dim - first : step;
      const std::size_t row = t * block.key_stride + first;
      T* const gradient = block.gradient + row;
      for (std::size_t i = 0; i < count; ++i)
        y[i] = block.bias != nullptr ? block.x[row + i] + block.bias[first + i] : block.x[row + i];
      if (!block.lower_bounded) {
        sigmoids(block.exponential, y, T(1), count, rising);
        for (std::size_t i = 0; i < count; ++i) {
          amplitude_sum = amplitude_sum + through_slope(gradient[i], block.g[row + i]);
          gradient[i] = through_softplus(gradient[i], block.amplitude, rising[i]);
        }
        continue;
      }
      for (std::size_t i = 0; i < count; ++i) z[i] = block.amplitude * y[i];
      sigmoids(block.exponential, z, T(1), count, rising);
      sigmoids(block.exponential, z, T(-1), count, falling);
      for (std::size_t i = 0; i < count; ++i) {
        gradient[i] = through_bounded(gradient[i], block.amplitude, block.lower_bound, rising[i], falling[i]);
        amplitude_sum = amplitude_sum + through_slope(gradient[i], y[i]);
      }
    }
    block.amplitude_sums[t] = amplitude_sum;
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
