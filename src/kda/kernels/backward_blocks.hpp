// What the kernels of the recurrence and of the backward pass take. Plain data; arrays of tokens are
// [token][channel], rows of the key dimension have `key_stride` elements, those of the value dimension
// `value_stride`.
#pragma once

#include <cstddef>

#include "kda/kernels/operations.hpp"

namespace kda_check::kda {

/// The recurrence over a block of tokens, one tile of V lanes of one head: every operation on the state runs
/// down its columns.
template <class T>
struct ColumnsBlock {
  std::size_t tokens, key_dim, key_stride, value_stride;
  const T *q, *k, *decay;  ///< [tokens][key_stride]: scaled query, key, exp(g)
  const T* beta;           ///< [tokens]
  const T* rows;           ///< [tokens][value_stride]: forwards v, backwards do
  /// [tokens][value_stride]: forwards o_t, in a replay the errors e_t = v_t - P_t^T k_t; backwards r_t =
  /// D_t^T k_t.
  T* sums;
  /// [key_dim][lanes of a tile]. Forwards the state, in: entering the block, out: leaving it. Backwards D,
  /// the gradient of the state, in: leaving the block, out: entering it.
  T* state;
  Operations operations;
  CastPoints casts;  ///< prediction and carry
  /// [tokens][key_stride], what predictions read the state along where that is not k (erase * k); null: k.
  const T* read = nullptr;
  const T* column_beta = nullptr;  ///< [tokens][value_stride], a beta for each column; null: beta

  const T* read_key() const { return read != nullptr ? read : k; }
  /// Those of token t, in front of element `at` of its row of values.
  template <class Pack>
  Pack strengths(std::size_t t, std::size_t at) const {
    return column_beta != nullptr ? Pack::load(column_beta + at) : Pack::broadcast(beta[t]);
  }
};

/// The same block, one tile of K lanes of the transposed state: forwards and then backwards again, for what
/// is summed along the rows of the state.
template <class T>
struct RowsBlock {
  std::size_t tokens, value_dim, key_stride, value_stride;
  const T *q, *k, *decay;                ///< [tokens][key_stride], the lanes of this tile
  const T *write, *prediction_gradient;  ///< [tokens][value_stride]: beta_t e_t; beta_t r_t
  const T* output_gradient;              ///< [tokens][value_stride]: do_t
  T *dq, *dk, *dg;  ///< [tokens][key_stride]: S_t do_t; D_t (beta_t e_t) - P_t (beta_t r_t);
                    ///< the rows of D'_t P_t, summed
  T* state;         ///< [value_dim][lanes], in: entering the block; overwritten
  T* gradient;      ///< [value_dim][lanes], in and out as ColumnsBlock::state backwards
  T* history;       ///< tokens * (value_dim + 1) * lanes elements, for P_t and a sum of each token
  Operations operations;
  CastPoints casts;         ///< carry
  const T* read = nullptr;  ///< as in ColumnsBlock, the lanes of this tile
  T* dread = nullptr;  ///< [tokens][key_stride]: -P_t (beta_t r_t) where dk is without it; null: dk has both

  const T* read_key() const { return read != nullptr ? read : k; }
};

template <class T>
struct TokenBackwardKernels {
  void (*replay)(const ColumnsBlock<T>&);            ///< forwards, for the errors
  void (*column_gradients)(const ColumnsBlock<T>&);  ///< backwards
  void (*row_gradients)(const RowsBlock<T>&);
};

/// a . b, row by row.
template <class T>
struct RowDotsBlock {
  std::size_t rows, columns, stride;
  const T *a, *b;
  T* dots;  ///< [rows]
  Operations operations;
};

/// From the gradient of y = x / sqrt(sum x^2 + 1e-6) to that of x: (dy - (dy . y) y) / sqrt(sum x^2 + 1e-6).
template <class T>
struct NormGradientBlock {
  std::size_t tokens, key_dim, key_stride;
  const T *x, *y;  ///< as stored, and as it was used
  T* gradient;     ///< in: dy; out: dx
  Operations operations;
  RowLayout along{};  ///< of dy . y in Triton's order; no registers: the order of all else
};

/// From the gradient of the log decay g to that of the gate as stored, x (docs/kda.md, "Gates"). 1 - sigmoid
/// is evaluated as the sigmoid of the opposite, so that a saturated gate keeps its digits.
template <class T>
struct GateGradientBlock {
  std::size_t tokens, key_dim, key_stride;
  const T *x, *g;
  const T* bias;  ///< [key_dim], or null
  T amplitude;    ///< exp(A_log), or 1
  bool lower_bounded;
  T lower_bound;
  Exponential exponential;
  T* gradient;        ///< in: dg; out: dx
  T* amplitude_sums;  ///< [tokens]: the terms of dA_log, summed over K
  // In Triton's order; without registers that of all else.
  RowLayout keys{};
  Special special = Special::ieee;
  bool is_fused = true;
};

}  // namespace kda_check::kda
