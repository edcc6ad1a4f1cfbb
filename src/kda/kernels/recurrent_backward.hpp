// The token form backwards (docs/kda.md, "Backward", recurrent): sums in order, nothing rounded on the way.
//
// Columns of the state never meet in the sums over K, rows never in those over V. So the gradient of the
// state is carried twice, once for tiles of V lanes and once, transposed, for tiles of K lanes: the same
// operations on the same numbers, and every sum runs from its first term upwards whatever the tile. Each pass
// reads and writes its tile once a token.
#pragma once

#include "kda/kernels/lanes.hpp"
#include "kda/kernels/table.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template <bool is_fused, class T, int W>
KDA_CHECK_INLINE Lanes<T, W> multiply_add(const Lanes<T, W>& a, const Lanes<T, W>& b, const Lanes<T, W>& c) {
  if constexpr (is_fused) {
    return fma(a, b, c);
  } else {
    return a * b + c;
  }
}

/// The errors e_t, by the operations that recurrent_tile() has, without its read-out.
template <class T, int W, bool is_fused>
KDA_CHECK_INLINE void replay_tile(const ColumnsBlock<T>& block) {
  using Pack = Lanes<T, W>;
  T* const state = block.state;
  const std::size_t rows = block.key_dim;
  Pack write = Pack::zero();
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const T *const key = block.k + t * block.key_stride, *const decay = block.decay + t * block.key_stride;
    const T* const last_key = t == 0 ? key : key - block.key_stride;
    Pack prediction = Pack::zero();
    for (std::size_t k = 0; k < rows; ++k) {
      T* const row = state + k * Pack::count;
      Pack s = Pack::load(row);
      if (t > 0) s = multiply_add<is_fused>(last_key[k], write, s);  // S_t-1 = P_t-1 + k (beta e)^T
      s = s * decay[k];                                              // P_t = diag(e^g_t) S_t-1
      prediction = multiply_add<is_fused>(key[k], s, prediction);    // P_t^T k_t
      s.store(row);
    }
    const Pack error = Pack::load(block.rows + t * block.value_stride) - prediction;
    error.store(block.sums + t * block.value_stride);
    write = error * block.beta[t];
  }
  if (block.tokens == 0) return;
  const T* const key = block.k + (block.tokens - 1) * block.key_stride;
  for (std::size_t k = 0; k < rows; ++k) {
    T* const row = state + k * Pack::count;
    multiply_add<is_fused>(key[k], write, Pack::load(row)).store(row);
  }
}

template <class T, int W, bool is_fused>
KDA_CHECK_INLINE void column_gradients_tile(const ColumnsBlock<T>& block) {
  using Pack = Lanes<T, W>;
  T* const gradient = block.state;
  const std::size_t rows = block.key_dim;
  Pack y = Pack::zero();
  for (std::size_t t = block.tokens; t-- > 0;) {
    const T *const q = block.q + t * block.key_stride, *const key = block.k + t * block.key_stride;
    const T *const later_key = key + block.key_stride, *const later_decay =
                                                           block.decay + (t + 1) * block.key_stride;
    const bool last = t + 1 == block.tokens;
    const Pack d_o = Pack::load(block.rows + t * block.value_stride);
    Pack r = Pack::zero();
    const Pack opposite = -y;
    for (std::size_t k = 0; k < rows; ++k) {
      T* const row = gradient + k * Pack::count;
      Pack d = Pack::load(row);
      if (!last) d = multiply_add<is_fused>(later_key[k], opposite, d) * later_decay[k];
      d = multiply_add<is_fused>(q[k], d_o, d);  // D_t += q_t do_t^T
      r = multiply_add<is_fused>(key[k], d, r);  // D_t^T k_t
      d.store(row);
    }
    r.store(block.sums + t * block.value_stride);
    y = r * block.beta[t];
  }
  for (std::size_t k = 0; k < rows && block.tokens > 0; ++k) {
    T* const row = gradient + k * Pack::count;
    (multiply_add<is_fused>(-block.k[k], y, Pack::load(row)) * block.decay[k]).store(row);
  }
}

template <class T, int W, bool is_fused>
KDA_CHECK_INLINE void row_gradients_tile(const RowsBlock<T>& block) {
  using Pack = Lanes<T, W>;
  const std::size_t V = block.value_dim;
  T *const state = block.state, *const gradient = block.gradient;
  for (std::size_t t = 0; t < block.tokens; ++t) {
    const T *const write = block.write + t * block.value_stride, *const d_o = block.output_gradient +
                                                                              t * block.value_stride;
    const Pack key = Pack::load(block.k + t * block.key_stride);
    const Pack decay = Pack::load(block.decay + t * block.key_stride);
    T* const history = block.history + t * V * Pack::count;
    Pack dq = Pack::zero();
    for (std::size_t v = 0; v < V; ++v) {
      const Pack p = Pack::load(state + v * Pack::count) * decay;
      p.store(history + v * Pack::count);
      const Pack s = multiply_add<is_fused>(write[v], key, p);
      dq = multiply_add<is_fused>(d_o[v], s, dq);
      s.store(state + v * Pack::count);
    }
    dq.store(block.dq + t * block.key_stride);
  }
  for (std::size_t t = block.tokens; t-- > 0;) {
    const T *const write = block.write + t * block.value_stride,
                   *const d_o = block.output_gradient + t * block.value_stride,
                   *const prediction_gradient = block.prediction_gradient + t * block.value_stride;
    const Pack q = Pack::load(block.q + t * block.key_stride);
    const Pack opposite_key = -Pack::load(block.k + t * block.key_stride);
    const Pack decay = Pack::load(block.decay + t * block.key_stride);
    const T* const history = block.history + t * V * Pack::count;
    Pack by_write = Pack::zero(), by_prediction = Pack::zero(), dg = Pack::zero();
    for (std::size_t v = 0; v < V; ++v) {
      const Pack p = Pack::load(history + v * Pack::count);
      const T y = prediction_gradient[v];
      Pack d = Pack::load(gradient + v * Pack::count);
      d = multiply_add<is_fused>(d_o[v], q, d);  // D_t
      by_write = multiply_add<is_fused>(write[v], d, by_write);
      by_prediction = multiply_add<is_fused>(y, p, by_prediction);
      d = multiply_add<is_fused>(y, opposite_key, d);  // D'_t = D_t - k_t (beta_t r_t)^T
      dg = multiply_add<is_fused>(d, p, dg);
      (d * decay).store(gradient + v * Pack::count);
    }
    (by_write - by_prediction).store(block.dk + t * block.key_stride);
    dg.store(block.dg + t * block.key_stride);
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
