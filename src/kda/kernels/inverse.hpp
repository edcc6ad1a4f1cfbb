// A = (I + L)^-1 for a strictly lower L (kda-math 4.2). L and A are [n][stride]; A is written whole, zeros
// above the diagonal included.
#pragma once

#include "kda/kernels/prepare.hpp"
#include "kda/kernels/product.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// (a) X = -L; then row i += X[i, <i] X[<i, <i], sums from the first column upwards; then X += I. `columns`
/// is a multiple of 16 and >= n.
template <class T, bool is_fused>
KDA_CHECK_INLINE void invert_by_substitution(std::size_t n, std::size_t columns, const T* l, T* x,
                                             std::size_t stride) {
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < columns; ++j) x[i * stride + j] = j < i ? -l[i * stride + j] : T(0);
    for (std::size_t block = 0; block < columns && block < i; block += 16) {
      Sixteen<T> sum = Sixteen<T>::load(x + i * stride + block);
      for (std::size_t m = block + 1; m < i; ++m)  // rows m <= block have nothing in these columns
        sum = multiply_add<is_fused>(-l[i * stride + m], Sixteen<T>::load(x + m * stride + block), sum);
      sum.store(x + i * stride + block);
    }
  }
  for (std::size_t i = 0; i < n; ++i) x[i * stride + i] = T(1);
}

/// (b) 16x16 diagonal blocks by (a). Then X_ij = -(X_ii L_ij) X_jj for neighbours, and
/// X_ij = -X_ii (sum_{m=j}^{i-1} L_im X_mj) below, in order of increasing i - j. Factors of the products are
/// rounded as `rounding` says. `scratch`: 3 * 256 elements.
template <class T, bool is_fused>
KDA_CHECK_INLINE void invert_by_blocks(std::size_t n, const T* l, T* x, std::size_t stride, Rounding rounding,
                                       T* scratch) {
  const std::size_t blocks = (n + 15) / 16;
  const auto height = [&](std::size_t block) {
    return n - block * 16 < 16 ? n - block * 16 : std::size_t{16};
  };
  T* const left = scratch;
  T* const right = scratch + 256;
  T* const sum = scratch + 512;
  // A factor, copied with zeros around and rounded.
  const auto factor = [&](const T* source, std::size_t i, std::size_t j, T* target) {
    for (std::size_t row = 0; row < 16; ++row)
      for (std::size_t column = 0; column < 16; ++column)
        target[row * 16 + column] =
            row < height(i) && column < height(j) ? source[(i * 16 + row) * stride + j * 16 + column] : T(0);
    round_array(rounding, target, 256);
  };
  const auto multiply = [&](Start start) {
    product<T, is_fused>(16, 16, 16, Factor<T>{left, 16, 1}, right, 16, sum, 16, start);
  };
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < blocks * 16; ++j) x[i * stride + j] = T(0);
  for (std::size_t b = 0; b < blocks; ++b)
    invert_by_substitution<T, is_fused>(height(b), 16, l + b * 16 * stride + b * 16,
                                        x + b * 16 * stride + b * 16, stride);
  for (std::size_t apart = 1; apart < blocks; ++apart)
    for (std::size_t j = 0; j + apart < blocks; ++j) {
      const std::size_t i = j + apart;
      if (apart == 1) {
        factor(x, i, i, left);
        factor(l, i, j, right);
        multiply(Start::zero);  // X_ii L_ij
        for (std::size_t e = 0; e < 256; ++e) left[e] = sum[e];
        round_array(rounding, left, 256);
        factor(x, j, j, right);
        multiply(Start::zero);  // (X_ii L_ij) X_jj
      } else {
        for (std::size_t m = j; m < i; ++m) {
          factor(l, i, m, left);
          factor(x, m, j, right);
          multiply(m == j ? Start::zero : Start::from_result);  // sum_m L_im X_mj
        }
        for (std::size_t e = 0; e < 256; ++e) right[e] = sum[e];
        round_array(rounding, right, 256);
        factor(x, i, i, left);
        multiply(Start::zero);  // X_ii sum
      }
      for (std::size_t row = 0; row < height(i); ++row)
        for (std::size_t column = 0; column < height(j); ++column)
          x[(i * 16 + row) * stride + j * 16 + column] = -sum[row * 16 + column];
    }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
