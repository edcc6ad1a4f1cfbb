// The definition differentiated, token by token, as a textbook writes it (docs/kda.md, "Backward"): whole
// states, one operation after the other, any order of sums.
#pragma once

#include "kda/kernels/elements/prepare.hpp"
#include "kda/kernels/sums/reduction.hpp"
#include "kda/kernels/table.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// What the steps of a token do to matrices and vectors of one head.
template <class T>
struct NaiveSteps {
  using Pack = Sixteen<T>;
  const NaiveBackwardBlock<T>& block;

  std::size_t size() const { return block.key_dim * block.value_stride; }
  T* state(std::size_t t) const { return block.states + t * size(); }
  T* row(T* matrix, std::size_t k) const { return matrix + k * block.value_stride; }
  /// Of the key; betas of columns weigh e_t.
  T weight(std::size_t t, std::size_t k) const {
    const T key = block.k[t * block.key_stride + k];
    return block.column_beta != nullptr ? key : block.beta[t] * key;
  }
  /// What S_t adds along the key: e_t, or beta_t e_t behind the scratch of keys.
  const T* write(std::size_t t) const {
    const T* const error = block.errors + t * block.value_stride;
    if (block.column_beta == nullptr) return error;
    T* const weighted = block.scratch + 2 * block.key_stride;
    for (std::size_t v = 0; v < block.value_stride; ++v)
      weighted[v] = error[v] * block.column_beta[t * block.value_stride + v];
    return weighted;
  }

  /// to = diag(e^g_t) from
  KDA_CHECK_INLINE void decay(std::size_t t, const T* from, T* to) const {
    for (std::size_t k = 0; k < block.key_dim; ++k) {
      const T factor = block.decay[t * block.key_stride + k];
      for (std::size_t v = 0; v < block.value_stride; ++v)
        to[k * block.value_stride + v] = from[k * block.value_stride + v] * factor;
    }
  }
  /// row k of matrix += factor values
  KDA_CHECK_INLINE void add(T factor, const T* values, T* matrix_row) const {
    const Pack weight = Pack::broadcast(factor);
    for (std::size_t v = 0; v < block.value_stride; v += Pack::count)
      multiply_add_pack(block.operations.is_fused, weight, Pack::load(values + v), Pack::load(matrix_row + v))
          .store(matrix_row + v);
  }
  /// sums = sum_k weights_k (row k of matrix), rounded as predictions are
  KDA_CHECK_INLINE void over_keys(const T* weights, const T* matrix, T* sums) const {
    const SumOrder order = sums_of_columns(block.operations);
    for (std::size_t v = 0; v < block.value_stride; v += Pack::count)
      ordered_sum(order, block.key_dim, WeightedRows<T>{weights, 1, matrix + v, block.value_stride},
                  Pack::zero(), false)
          .store(sums + v);
    round_array(block.casts.prediction, sums, block.value_stride);
  }
  /// sums_k = (row k of matrix) . (row k of others), whose rows are `stride` apart
  KDA_CHECK_INLINE void over_values(const T* matrix, const T* others, std::size_t stride, T* sums) const {
    constexpr std::size_t together = 8;
    for (std::size_t k = 0; k < block.key_dim; k += together) {
      const std::size_t rows = block.key_dim - k < together ? block.key_dim - k : together;
      dots_of_rows(sums_of_rows(block.operations),
                   Rows<T>{matrix + k * block.value_stride, block.value_stride},
                   Rows<T>{others + k * stride, stride}, rows, block.value_dim, sums + k);
    }
  }
};

template <class T>
void naive_replay(const NaiveBackwardBlock<T>& block) {
  const NaiveSteps<T> steps{block};
  for (std::size_t t = 0; t < block.tokens; ++t) {
    T *const state = steps.state(t + 1), *const error = block.errors + t * block.value_stride;
    const T* const value = block.rows + t * block.value_stride;
    steps.decay(t, steps.state(t), state);  // P_t = diag(e^g_t) S_t-1
    steps.over_keys(block.read_key() + t * block.key_stride, state, error);
    for (std::size_t v = 0; v < block.value_stride; ++v) error[v] = value[v] - error[v];
    const T* const write = steps.write(t);
    for (std::size_t k = 0; k < block.key_dim; ++k)
      steps.add(steps.weight(t, k), write, steps.row(state, k));  // S_t = P_t + (beta_t k_t) e_t^T
    round_array(block.casts.carry, state, steps.size());
  }
}

template <class T>
void naive_gradients(const NaiveBackwardBlock<T>& block) {
  const NaiveSteps<T> steps{block};
  const std::size_t K = block.key_dim;
  for (std::size_t t = block.tokens; t-- > 0;) {
    const std::size_t keys = t * block.key_stride, values = t * block.value_stride;
    const T *const q = block.q + keys, *const key = block.k + keys, *const d_o = block.rows + values,
                   *const error = block.errors + values, *const write = steps.write(t),
                   *const read = block.read_key() + keys;
    T *const dq = block.dq + keys, *const dk = block.dk + keys, *const dg = block.dg + keys,
             *const dv = block.dv + values, *const by_prediction = block.scratch,
             *const weight = block.scratch + block.key_stride;
    steps.decay(t, steps.state(t), block.decayed);      // P_t, as before
    steps.over_values(steps.state(t + 1), d_o, 0, dq);  // S_t do_t
    for (std::size_t k = 0; k < K; ++k)
      steps.add(q[k], d_o, steps.row(block.gradient, k));  // D_t += (scale q_t) do_t^T
    for (std::size_t k = 0; k < K; ++k) weight[k] = steps.weight(t, k);
    steps.over_keys(weight, block.gradient, dv);      // of e_t, and of v_t: D_t^T (beta_t k_t)
    steps.over_values(block.gradient, write, 0, dk);  // of beta_t k_t: D_t e_t
    if (block.column_beta == nullptr) {
      dot_of_row(sums_of_rows(block.operations), key, dk, K, block.dbeta + t);  // k_t . D_t e_t
      for (std::size_t k = 0; k < K; ++k) dk[k] = block.beta[t] * dk[k];
    } else {  // r_t = D_t^T k_t so far
      for (std::size_t v = 0; v < block.value_stride; ++v) {
        block.dbeta[values + v] = dv[v] * error[v];
        dv[v] = dv[v] * block.column_beta[values + v];
      }
    }
    steps.over_values(block.decayed, dv, 0, by_prediction);  // P_t dv_t
    for (std::size_t k = 0; k < K; ++k)
      if (block.dread != nullptr)
        block.dread[keys + k] = -by_prediction[k];
      else
        dk[k] = dk[k] - by_prediction[k];
    for (std::size_t k = 0; k < K; ++k)
      steps.add(-read[k], dv, steps.row(block.gradient, k));  // D'_t = D_t - k_t dv_t^T
    steps.over_values(block.gradient, block.decayed, block.value_stride, dg);
    steps.decay(t, block.gradient, block.gradient);  // D_t-1 = diag(e^g_t) D'_t
    round_array(block.casts.carry, block.gradient, steps.size());
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
