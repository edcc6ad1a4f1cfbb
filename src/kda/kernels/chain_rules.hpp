// What stands between the gradients of the recurrence and those of the tensors as stored: norm and gate,
// backwards.
#pragma once

#include "kda/kernels/gradient_rules.hpp"
#include "kda/kernels/prepare.hpp"

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

template <class T>
void normalise_gradient(const NormGradientBlock<T>& block) {
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const std::size_t row = t * block.key_stride;
    const T *const x = block.x + row, *const y = block.y + row;
    T* const gradient = block.gradient + row;
    T squares, along;
    dot_of_row(sums_of_rows(block.operations), x, x, block.key_dim, &squares);
    dot_of_row(sums_of_rows(block.operations), gradient, y, block.key_dim, &along);
    const T reciprocal = T(1) / square_root(Special::ieee, squares + T(1e-6));
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

template <class T>
void gate_gradient(const GateGradientBlock<T>& block) {
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
