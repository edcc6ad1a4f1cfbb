// The recurrence backwards in any arithmetic: any order of sums, roundings of the predictions and of what is
// carried. A pack of columns of a tile at a time, one operation after the other; a tile has a whole number of
// packs.
#pragma once

#include "kda/kernels/token/token.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// What predictions read the state along; on a GPU always the key.
template <class Block>
KDA_CHECK_THREAD auto key_read_along(const Block& block) {
#ifdef __CUDACC__
  return block.k;
#else
  return block.read_key();
#endif
}
/// The betas of a pack of columns of token t; on a GPU always one.
template <class T>
KDA_CHECK_THREAD Sixteen<T> strengths_of(const ColumnsBlock<T>& block, std::size_t t, std::size_t at) {
#ifdef __CUDACC__
  return Sixteen<T>::broadcast(block.beta[t]);
#else
  return block.template strengths<Sixteen<T> >(t, at);
#endif
}

/// Sums over K of the gradient of the state; with beta on the key in the order of predictions, which on a GPU
/// it never is.
template <class T>
KDA_CHECK_THREAD SumOrder sums_of_gradients(const ColumnsBlock<T>& block) {
#ifndef __CUDACC__
  if (block.operations.beta == BetaPart::keys) return sums_of_columns(block.operations);
#endif
  return sums_of_rows(block.operations);
}

/// sum_i weights_i rows_i over rows of `stride` elements.
template <class T>
KDA_CHECK_THREAD Sixteen<T> weighted_rows(const SumOrder& order, std::size_t count, const T* weights,
                                          const T* rows, std::size_t stride) {
  return sum_over_rows<T>(order, count, WeightedRows<T>{weights, 1, rows, stride});
}

template <class T, std::size_t lanes>
KDA_CHECK_THREAD void replay_columns(const ColumnsBlock<T>& block, std::size_t column) {
  using Pack = Sixteen<T>;
  const bool is_fused = block.operations.is_fused;
  const Rounding carry = block.casts.carry;
  const SumOrder order = sums_of_columns(block.operations);
  T* const state = block.state + column;
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const std::size_t row = t * block.key_stride, at = t * block.value_stride + column;
    change_rows(state, lanes, block.key_dim, block.decay + row,
                [&](T decay, const Pack& s) KDA_CHECK_BODY { return s * decay; });
    const Pack prediction =
        rounded_pack<T>(block.casts.prediction,
                        weighted_rows(order, block.key_dim, key_read_along(block) + row, state, lanes));
    const Pack error = Pack::load(block.rows + at) - prediction;
    error.store(block.sums + at);
    const Pack write = error * strengths_of<T>(block, t, at);
    change_rows(state, lanes, block.key_dim, block.k + row, [&](T key, const Pack& s) KDA_CHECK_BODY {
      return rounded_pack<T>(carry, multiply_add_pack(is_fused, Pack::broadcast(key), write, s));
    });
  }
}

template <class T, std::size_t lanes>
KDA_CHECK_THREAD void column_gradients_columns(const ColumnsBlock<T>& block, std::size_t column) {
  using Pack = Sixteen<T>;
  const bool is_fused = block.operations.is_fused;
  const Rounding carry = block.casts.carry;
  const SumOrder order = sums_of_gradients(block);
  T* const gradient = block.state + column;
  for (std::size_t t = block.tokens; t-- > 0;) {
    const std::size_t row = t * block.key_stride, at = t * block.value_stride + column;
    const Pack d_o = Pack::load(block.rows + at);
    change_rows(gradient, lanes, block.key_dim, block.q + row, [&](T q, const Pack& d) KDA_CHECK_BODY {
      return multiply_add_pack(is_fused, Pack::broadcast(q), d_o, d);
    });
    const Pack r = rounded_pack<T>(block.casts.prediction,
                                   weighted_rows(order, block.key_dim, block.k + row, gradient, lanes));
    r.store(block.sums + at);
    const Pack y = r * strengths_of<T>(block, t, at);
    const T* const decay = block.decay + row;
    change_numbered_rows(gradient, lanes, block.key_dim, key_read_along(block) + row,
                         [&](std::size_t k, T read, const Pack& d) KDA_CHECK_BODY {
                           return rounded_pack<T>(
                               carry, multiply_add_pack(is_fused, Pack::broadcast(-read), y, d) * decay[k]);
                         });
  }
}

/// P_t and S_t do_t of a pack of columns of the transposed state.
template <class T, std::size_t lanes>
KDA_CHECK_THREAD void replay_rows(const RowsBlock<T>& block, std::size_t column, const SumOrder& order) {
  using Pack = Sixteen<T>;
  const std::size_t V = block.value_dim;
  const Rounding carry = block.casts.carry;
  T* const state = block.state + column;
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const std::size_t at = t * block.key_stride + column, row = t * block.value_stride;
    const Pack key = Pack::load(block.k + at), decay = Pack::load(block.decay + at);
    T* const history = block.history + t * V * lanes + column;
    change_numbered_rows(
        state, lanes, V, block.write + row, [&](std::size_t v, T write, const Pack& s) KDA_CHECK_BODY {
          const Pack p = s * decay;
          p.store(history + v * lanes);
          return rounded_pack<T>(carry, multiply_add_pack(order.is_fused, Pack::broadcast(write), key, p));
        });
    weighted_rows(order, V, block.output_gradient + row, state, lanes).store(block.dq + at);
  }
}

template <class T, std::size_t lanes>
KDA_CHECK_THREAD void row_gradients_columns(const RowsBlock<T>& block, std::size_t column) {
  using Pack = Sixteen<T>;
  const std::size_t V = block.value_dim;
  const Rounding carry = block.casts.carry;
  const SumOrder order = sums_of_rows(block.operations);
  replay_rows<T, lanes>(block, column, order);
  T* const gradient = block.gradient + column;
  for (std::size_t t = block.tokens; t-- > 0;) {
    const std::size_t at = t * block.key_stride + column, row = t * block.value_stride;
    const Pack q = Pack::load(block.q + at), opposite_key = -Pack::load(key_read_along(block) + at);
    const Pack decay = Pack::load(block.decay + at);
    const T *const history = block.history + t * V * lanes + column, *const y =
                                                                         block.prediction_gradient + row;
    const auto add = [&](const T* weights, const Pack& pack) KDA_CHECK_BODY {
      change_rows(gradient, lanes, V, weights, [&](T weight, const Pack& d) KDA_CHECK_BODY {
        return multiply_add_pack(order.is_fused, Pack::broadcast(weight), pack, d);
      });
    };
    add(block.output_gradient + row, q);
    const Pack by_write = weighted_rows(order, V, block.write + row, gradient, lanes),
               by_prediction = weighted_rows(order, V, y, history, lanes);
    (block.dread != nullptr ? by_write : by_write - by_prediction).store(block.dk + at);
    if (block.dread != nullptr) (-by_prediction).store(block.dread + at);
    add(y, opposite_key);
    sum_over_rows<T>(order, V, PairedRows<T>{gradient, history, lanes}).store(block.dg + at);
    change_rows(gradient, lanes, V, y,
                [&](T, const Pack& d) KDA_CHECK_BODY { return rounded_pack<T>(carry, d * decay); });
  }
}

template <class T, std::size_t lanes>
KDA_CHECK_TEAM_CALLED void replay_block(const ColumnsBlock<T>& block) {
  each_pack<T>(lanes, [&](std::size_t column) KDA_CHECK_BODY { replay_columns<T, lanes>(block, column); });
}

template <class T, std::size_t lanes>
KDA_CHECK_TEAM_CALLED void column_gradients_block(const ColumnsBlock<T>& block) {
  each_pack<T>(lanes,
               [&](std::size_t column) KDA_CHECK_BODY { column_gradients_columns<T, lanes>(block, column); });
}

template <class T, std::size_t lanes>
KDA_CHECK_TEAM_CALLED void row_gradients_block(const RowsBlock<T>& block) {
  each_pack<T>(lanes,
               [&](std::size_t column) KDA_CHECK_BODY { row_gradients_columns<T, lanes>(block, column); });
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
