// The token form backwards in any arithmetic: any order of sums, roundings of the predictions and of what is
// carried. 16 lanes at a time, one operation after the other; a tile has a whole number of them.
#pragma once

#include "kda/kernels/prepare.hpp"
#include "kda/kernels/reduction.hpp"
#include "kda/kernels/table.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// sum_i weights_i rows_i over rows of `stride` elements.
template <class T>
Sixteen<T> weighted_rows(const SumOrder& order, std::size_t count, const T* weights, const T* rows,
                         std::size_t stride) {
  return ordered_sum(order, count, WeightedRows<T>{weights, 1, rows, stride}, Sixteen<T>::zero(), false);
}

template <class T, std::size_t lanes>
void replay_block(const ColumnsBlock<T>& block) {
  using Pack = Sixteen<T>;
  const bool is_fused = block.operations.is_fused;
  const SumOrder order = sums_of_columns(block.operations);
  for (std::size_t column = 0; column < lanes; column += 16)
    for (std::size_t t = 0; t < block.tokens; ++t) {
      const T *const key = block.k + t * block.key_stride,
                     *const read = block.read_key() + t * block.key_stride,
                     *const decay = block.decay + t * block.key_stride;
      T* const state = block.state + column;
      for (std::size_t k = 0; k < block.key_dim; ++k)
        (Pack::load(state + k * lanes) * decay[k]).store(state + k * lanes);
      T prediction[Pack::count];
      weighted_rows(order, block.key_dim, read, state, lanes).store(prediction);
      round_array(block.casts.prediction, prediction, Pack::count);
      const std::size_t at = t * block.value_stride + column;
      const Pack error = Pack::load(block.rows + at) - Pack::load(prediction);
      error.store(block.sums + at);
      const Pack write = error * block.template strengths<Pack>(t, at);
      for (std::size_t k = 0; k < block.key_dim; ++k) {
        T* const row = state + k * lanes;
        multiply_add_pack(is_fused, Pack::broadcast(key[k]), write, Pack::load(row)).store(row);
        round_array(block.casts.carry, row, Pack::count);
      }
    }
}

template <class T, std::size_t lanes>
void column_gradients_block(const ColumnsBlock<T>& block) {
  using Pack = Sixteen<T>;
  const bool is_fused = block.operations.is_fused;
  const SumOrder order{block.operations.reduction, is_fused};
  for (std::size_t column = 0; column < lanes; column += 16)
    for (std::size_t t = block.tokens; t-- > 0;) {
      const T *const q = block.q + t * block.key_stride, *const key = block.k + t * block.key_stride;
      const T *const decay = block.decay + t * block.key_stride, *const read =
                                                                     block.read_key() + t * block.key_stride;
      T* const gradient = block.state + column;
      const std::size_t at = t * block.value_stride + column;
      const Pack d_o = Pack::load(block.rows + at);
      for (std::size_t k = 0; k < block.key_dim; ++k) {
        T* const row = gradient + k * lanes;
        multiply_add_pack(is_fused, Pack::broadcast(q[k]), d_o, Pack::load(row)).store(row);
      }
      weighted_rows(order, block.key_dim, key, gradient, lanes).store(block.sums + at);
      round_array(block.casts.prediction, block.sums + at, Pack::count);
      const Pack y = Pack::load(block.sums + at) * block.template strengths<Pack>(t, at);
      for (std::size_t k = 0; k < block.key_dim; ++k) {
        T* const row = gradient + k * lanes;
        (multiply_add_pack(is_fused, Pack::broadcast(-read[k]), y, Pack::load(row)) * decay[k]).store(row);
        round_array(block.casts.carry, row, Pack::count);
      }
    }
}

/// P_t and S_t do_t of 16 columns of the transposed state.
template <class T, std::size_t lanes>
void replay_rows(const RowsBlock<T>& block, std::size_t column, const SumOrder& order) {
  using Pack = Sixteen<T>;
  const std::size_t V = block.value_dim;
  T* const state = block.state + column;
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const std::size_t at = t * block.key_stride + column;
    const Pack key = Pack::load(block.k + at), decay = Pack::load(block.decay + at);
    T* const history = block.history + t * V * lanes + column;
    for (std::size_t v = 0; v < V; ++v) {
      const Pack p = Pack::load(state + v * lanes) * decay;
      p.store(history + v * lanes);
      const Pack write = Pack::broadcast(block.write[t * block.value_stride + v]);
      multiply_add_pack(order.is_fused, write, key, p).store(state + v * lanes);
      round_array(block.casts.carry, state + v * lanes, Pack::count);
    }
    weighted_rows(order, V, block.output_gradient + t * block.value_stride, state, lanes)
        .store(block.dq + at);
  }
}

template <class T, std::size_t lanes>
void row_gradients_block(const RowsBlock<T>& block) {
  using Pack = Sixteen<T>;
  const std::size_t V = block.value_dim;
  const SumOrder order{block.operations.reduction, block.operations.is_fused};
  for (std::size_t column = 0; column < lanes; column += 16) {
    replay_rows<T, lanes>(block, column, order);
    T* const gradient = block.gradient + column;
    for (std::size_t t = block.tokens; t-- > 0;) {
      const std::size_t at = t * block.key_stride + column, row = t * block.value_stride;
      const Pack q = Pack::load(block.q + at), opposite_key = -Pack::load(block.read_key() + at);
      const Pack decay = Pack::load(block.decay + at);
      const T *const history = block.history + t * V * lanes + column, *const y =
                                                                           block.prediction_gradient + row;
      for (std::size_t v = 0; v < V; ++v) {
        T* const d = gradient + v * lanes;
        multiply_add_pack(order.is_fused, Pack::broadcast(block.output_gradient[row + v]), q, Pack::load(d))
            .store(d);
      }
      const Pack by_write = weighted_rows(order, V, block.write + row, gradient, lanes),
                 by_prediction = weighted_rows(order, V, y, history, lanes);
      (block.dread != nullptr ? by_write : by_write - by_prediction).store(block.dk + at);
      if (block.dread != nullptr) (-by_prediction).store(block.dread + at);
      for (std::size_t v = 0; v < V; ++v) {
        T* const d = gradient + v * lanes;
        multiply_add_pack(order.is_fused, Pack::broadcast(y[v]), opposite_key, Pack::load(d)).store(d);
      }
      ordered_sum(order, V, PairedRows<T>{gradient, history, lanes}, Pack::zero(), false)
          .store(block.dg + at);
      for (std::size_t v = 0; v < V; ++v) {
        T* const d = gradient + v * lanes;
        (Pack::load(d) * decay).store(d);
        round_array(block.casts.carry, d, Pack::count);
      }
    }
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
