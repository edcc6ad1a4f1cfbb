// The token forms, naive and recurrent, in any arithmetic: any order of sums, roundings of the prediction and
// of the carried state. 16 columns of the state at a time, one operation after the other.
#pragma once

#include "kda/kernels/prepare.hpp"
#include "kda/kernels/reduction.hpp"
#include "kda/kernels/table.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template <class T>
void token_columns(const TokenBlock<T>& block, std::size_t column) {
  using Pack = Sixteen<T>;
  const std::size_t rows = block.key_dim;
  const bool is_fused = block.operations.is_fused;
  const SumOrder order{block.operations.reduction, is_fused};
  T* const state = block.state + column;
  const auto row = [&](std::size_t k) { return state + k * block.state_stride; };
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const T *const q = block.q + t * rows, *const key = block.k + t * rows;
    const T* const decay = block.decay + t * rows;
    const T beta = block.beta[t];
    const auto weighted_sum = [&](const T* weights) {  // sum_k weights_k S_k
      return ordered_sum(order, rows, WeightedRows<T>{weights, 1, state, block.state_stride}, Pack::zero(),
                         false);
    };
    for (std::size_t k = 0; k < rows; ++k)
      (Pack::load(row(k)) * decay[k]).store(row(k));  // P_t = diag(e^g_t) S_t-1
    T prediction[Pack::count];
    weighted_sum(key).store(prediction);  // P_t^T k_t
    round_array(block.casts.prediction, prediction, Pack::count);
    const Pack error = Pack::load(block.v + t * block.value_stride + column) -
                       Pack::load(prediction);  // e_t = v_t - P_t^T k_t
    const Pack write = block.weight_on_key ? error : error * beta;
    for (std::size_t k = 0; k < rows; ++k) {
      const Pack weight = Pack::broadcast(block.weight_on_key ? beta * key[k] : key[k]);
      multiply_add_pack(is_fused, weight, write, Pack::load(row(k)))
          .store(row(k));  // S_t = P_t + beta_t k_t e_t^T
      round_array(block.casts.carry, row(k), Pack::count);
    }
    weighted_sum(q).store(block.o + t * block.value_stride + column);  // o_t = S_t^T (scale q_t)
  }
}

template <class T>
void token_block(const TokenBlock<T>& block) {
  for (std::size_t column = 0; column < block.columns; column += 16) token_columns(block, column);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
