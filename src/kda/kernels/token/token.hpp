// The recurrence in any arithmetic: any order of sums, roundings of the prediction and
// of the carried state. A pack of columns of the state at a time, one operation after the other.
#pragma once

#include "kda/kernels/elements/decays.hpp"
#include "kda/kernels/sums/sums_of_rows.hpp"
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

#ifndef __CUDACC__

/// A pack past the subnormals.
template <class T>
KDA_CHECK_INLINE Sixteen<T> flushed_pack(Subnormals subnormals, const Sixteen<T>& pack) {
  if (subnormals == Subnormals::gradual) return pack;
  T values[Sixteen<T>::count];
  pack.store(values);
  for (T& x : values) x = flushed(subnormals, x);
  return Sixteen<T>::load(values);
}

/// Terms weights_k (decay_k S_k) of a state that has not decayed yet.
template <class T>
struct DecayedRows {
  const T *weights, *decay, *state;
  std::size_t stride;
  Subnormals subnormals;

  KDA_CHECK_INLINE Factors<Sixteen<T>> operator()(std::size_t k) const {
    return {Sixteen<T>::broadcast(weights[k]),
            flushed_pack<T>(subnormals, Sixteen<T>::load(state + k * stride) * decay[k])};
  }
};

#endif

/// Row k of a pack of columns becomes change(k, weights[k], row), for every row.
template <class T, class Change>
KDA_CHECK_THREAD void change_numbered_rows(T* columns, std::size_t stride, std::size_t rows, const T* weights,
                                           Change change) {
  using Pack = Sixteen<T>;
  std::size_t k = 0;
#ifdef __CUDACC__
  // Several are loaded before the first is stored, and nobody waits for each of them.
  constexpr std::size_t together = 16;
  for (; k + together <= rows; k += together) {
    Pack loaded[together];
    T weight[together];
#pragma unroll
    for (std::size_t i = 0; i < together; ++i)
      loaded[i] = Pack::load(columns + (k + i) * stride), weight[i] = weights[k + i];
#pragma unroll
    for (std::size_t i = 0; i < together; ++i) loaded[i] = change(k + i, weight[i], loaded[i]);
#pragma unroll
    for (std::size_t i = 0; i < together; ++i) loaded[i].store(columns + (k + i) * stride);
  }
#endif
  for (; k < rows; ++k) change(k, weights[k], Pack::load(columns + k * stride)).store(columns + k * stride);
}
/// ... change(weights[k], row).
template <class T, class Change>
KDA_CHECK_THREAD void change_rows(T* columns, std::size_t stride, std::size_t rows, const T* weights,
                                  Change change) {
  change_numbered_rows(columns, stride, rows, weights,
                       [&](std::size_t, T weight, const Sixteen<T>& row)
                           KDA_CHECK_BODY { return change(weight, row); });
}

/// One token after the other of a pack of columns. `is_usual`: subnormals stay, the decayed state is rounded
/// before a write joins it, and scale is in q.
template <bool is_usual, class T>
struct TokenColumns {
  using Pack = Sixteen<T>;
  const TokenBlock<T>& block;
  std::size_t column, t = 0;

  KDA_CHECK_THREAD Pack flush(const Pack& pack) const {
#ifndef __CUDACC__
    if constexpr (!is_usual) return flushed_pack<T>(block.operations.subnormals, pack);
#endif
    return pack;
  }
  KDA_CHECK_THREAD T* state() const { return block.state + column; }
  KDA_CHECK_THREAD const T* key() const { return block.k + t * block.key_dim; }
  /// What predictions read the state along.
  KDA_CHECK_THREAD const T* read() const { return block.read_key() + t * block.key_dim; }
  KDA_CHECK_THREAD const T* decay() const { return block.decay + t * block.key_dim; }
  /// sum_k of the terms
  template <class Terms>
  KDA_CHECK_THREAD Pack sum(const Terms& terms) const {
    return flush(sum_over_rows<T>(sums_of_columns(block.operations), block.key_dim, terms));
  }
  /// sum_k weights_k S_k
  KDA_CHECK_THREAD Pack weighted_sum(const T* weights) const {
    return sum(WeightedRows<T>{weights, 1, state(), block.state_stride});
  }
  /// beta_t e_t, e_t = v_t - P_t^T k_t
  KDA_CHECK_THREAD Pack write(const Pack& prediction) const {
    const std::size_t at = t * block.value_stride + column;
    const Pack value = Pack::load(block.v + at);
    const Pack predicted = rounded_pack<T>(block.casts.prediction, prediction);
#ifdef __CUDACC__
    const Pack error = flush(value - predicted);
#else
    const Pack error =
        flush(block.write == nullptr ? value - predicted
                                     : fma(Pack::load(block.write + at), value, predicted * T(-1)));
#endif
    if (block.column_beta != nullptr) return flush(error * Pack::load(block.column_beta + at));
    return flush(error * block.beta[t]);
  }

  KDA_CHECK_THREAD void update_decayed() const {
    const std::size_t stride = block.state_stride, rows = block.key_dim;
    change_rows(state(), stride, rows, decay(), [&](T factor, const Pack& row) KDA_CHECK_BODY {
      return flush(row * factor);  // P_t = diag(e^g_t) S_t-1
    });
    const Pack w = write(weighted_sum(read()));  // P_t^T k_t
    const bool is_fused = block.operations.is_fused;
    const Rounding carry = block.casts.carry;
    // S_t = P_t + k_t (beta_t e_t)^T
    change_rows(state(), stride, rows, key(), [&](T channel, const Pack& row) KDA_CHECK_BODY {
      return rounded_pack<T>(carry, flush(multiply_add_pack(is_fused, Pack::broadcast(channel), w, row)));
    });
  }
#ifndef __CUDACC__
  /// Row k of the state becomes change(k, row), for every row.
  template <class Change>
  KDA_CHECK_INLINE void change(Change change) const {
    for (std::size_t k = 0; k < block.key_dim; ++k) {
      T* const row = state() + k * block.state_stride;
      change(k, Pack::load(row)).store(row);
    }
  }
  /// The same as update_decayed, but S_t = diag(e^g_t) S_t-1 + k_t (beta_t e_t)^T, whose product is rounded.
  KDA_CHECK_INLINE void update_and_decay() const {
    const Pack w =
        write(sum(DecayedRows<T>{read(), decay(), state(), block.state_stride, block.operations.subnormals}));
    change([&](std::size_t k, const Pack& row) KDA_CHECK_BODY {
      const Pack product = flush(Pack::broadcast(key()[k]) * w);
      return rounded_pack<T>(
          block.casts.carry,
          flush(multiply_add_pack(block.operations.is_fused, Pack::broadcast(decay()[k]), row, product)));
    });
  }
#endif

  KDA_CHECK_THREAD void run() {
#ifndef __CUDACC__
    if constexpr (!is_usual) change([&](std::size_t, const Pack& row) KDA_CHECK_BODY { return flush(row); });
#endif
    for (t = 0; t < block.tokens; ++t) {
#ifndef __CUDACC__
      if (!is_usual && block.operations.update == Update::decay_fused)
        update_and_decay();
      else
#endif
        update_decayed();
      Pack output = weighted_sum(block.q + t * block.key_dim);  // o_t = S_t^T (scale q_t)
      if (!is_usual && block.operations.scale == ScaledPart::output) output = flush(output * block.scale);
      output.store(block.o + t * block.value_stride + column);
    }
  }
};

template <class T>
KDA_CHECK_TEAM_CALLED void token_block(const TokenBlock<T>& block) {
#ifndef __CUDACC__
  const Operations& operations = block.operations;
  if (operations.subnormals != Subnormals::gradual || operations.update == Update::decay_fused ||
      operations.scale == ScaledPart::output)
    return each_pack<T>(block.columns, [&](std::size_t column) {
      TokenColumns<false, T>{block, column}.run();
    });
#endif
  each_pack<T>(block.columns, [&](std::size_t column) KDA_CHECK_BODY {
    TokenColumns<true, T>{block, column}.run();
  });
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
