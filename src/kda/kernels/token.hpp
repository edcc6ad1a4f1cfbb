// The token forms, naive and recurrent, in any arithmetic: any order of sums, roundings of the prediction and
// of the carried state. A pack of columns of the state at a time, one operation after the other.
#pragma once

#include "kda/kernels/decays.hpp"
#include "kda/kernels/reduction.hpp"
#include "kda/kernels/table.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// A pack through a cast point.
template <class T>
KDA_CHECK_THREAD Sixteen<T> rounded_pack(Rounding rounding, const Sixteen<T>& pack) {
#ifdef __CUDACC__
  return {rounded(rounding, pack.x)};
#else
  if (rounding == Rounding::none) return pack;
  T values[Sixteen<T>::count];
  pack.store(values);
  round_array(rounding, values, Sixteen<T>::count);
  return Sixteen<T>::load(values);
#endif
}

/// Row k of a pack of columns becomes change(k, row), for every row.
template <class T, class Change>
KDA_CHECK_THREAD void change_rows(T* columns, std::size_t stride, std::size_t rows, Change change) {
  using Pack = Sixteen<T>;
  std::size_t k = 0;
#ifdef __CUDACC__
  // Several are loaded before the first is stored, and nobody waits for each of them.
  constexpr std::size_t together = 8;
  for (; k + together <= rows; k += together) {
    Pack loaded[together];
#pragma unroll
    for (std::size_t i = 0; i < together; ++i) loaded[i] = Pack::load(columns + (k + i) * stride);
#pragma unroll
    for (std::size_t i = 0; i < together; ++i) loaded[i] = change(k + i, loaded[i]);
#pragma unroll
    for (std::size_t i = 0; i < together; ++i) loaded[i].store(columns + (k + i) * stride);
  }
#endif
  for (; k < rows; ++k) change(k, Pack::load(columns + k * stride)).store(columns + k * stride);
}

/// The columns of a pack, over all tokens.
template <class T>
KDA_CHECK_THREAD_CALLED void token_columns(const TokenBlock<T>& block, std::size_t column) {
  using Pack = Sixteen<T>;
  const std::size_t rows = block.key_dim;
  const bool is_fused = block.operations.is_fused;
  const SumOrder order = sums_of_columns(block.operations);
  T* const state = block.state + column;
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const T *const q = block.q + t * rows, *const key = block.k + t * rows;
    const T* const decay = block.decay + t * rows;
    const T beta = block.beta[t];
    const auto weighted_sum = [&](const T* weights) {  // sum_k weights_k S_k
      return ordered_sum(order, rows, WeightedRows<T>{weights, 1, state, block.state_stride}, Pack::zero(),
                         false);
    };
    change_rows(state, block.state_stride, rows, [&](std::size_t k, const Pack& row) KDA_CHECK_BODY {
      return row * decay[k];  // P_t = diag(e^g_t) S_t-1
    });
    const Pack prediction = rounded_pack<T>(block.casts.prediction, weighted_sum(key));  // P_t^T k_t
    const Pack error =
        Pack::load(block.v + t * block.value_stride + column) - prediction;  // e_t = v_t - P_t^T k_t
    const Pack write = block.weight_on_key ? error : error * beta;
    change_rows(state, block.state_stride, rows, [&](std::size_t k, const Pack& row) KDA_CHECK_BODY {
      const Pack weight = Pack::broadcast(block.weight_on_key ? beta * key[k] : key[k]);
      return rounded_pack<T>(block.casts.carry, multiply_add_pack(is_fused, weight, write,
                                                                  row));  // S_t = P_t + beta_t k_t e_t^T
    });
    weighted_sum(q).store(block.o + t * block.value_stride + column);  // o_t = S_t^T (scale q_t)
  }
}

template <class T>
KDA_CHECK_TEAM_CALLED void token_block(const TokenBlock<T>& block) {
  each_pack<T>(block.columns, [&](std::size_t column) KDA_CHECK_BODY { token_columns(block, column); });
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
