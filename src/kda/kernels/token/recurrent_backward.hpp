// The token form backwards (docs/kda.md, "Backward", recurrent): sums in order, nothing rounded on the way.
//
// Columns of the state never meet in the sums over K, rows never in those over V. So the gradient of the
// state is carried twice, once for tiles of V lanes and once, transposed, for tiles of K lanes: the same
// operations on the same numbers, and every sum runs from its first term upwards whatever the tile. Columns
// need the whole sum over K before they go on, so that pass reads and writes its tile once a token.
#pragma once

#include "kda/kernels/lanes/lanes.hpp"
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

template <class T, int W, bool is_fused>
void column_gradients_tile(const ColumnsBlock<T>& block) {
  using Pack = Lanes<T, W>;
  T* const gradient = block.state;
  const std::size_t rows = block.key_dim;
  Pack y = Pack::zero();
  for (std::size_t t = block.tokens; t-- > 0;) {
    const T *const q = block.q + t * block.key_stride, *const key = block.k + t * block.key_stride;
    const T *const later_key = block.read_key() + (t + 1) * block.key_stride, *const later_decay =
                                                                                  block.decay +
                                                                                  (t + 1) * block.key_stride;
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
    y = r * block.template strengths<Pack>(t, t * block.value_stride);
  }
  for (std::size_t k = 0; k < rows && block.tokens > 0; ++k) {
    T* const row = gradient + k * Pack::count;
    (multiply_add<is_fused>(-block.read_key()[k], y, Pack::load(row)) * block.decay[k]).store(row);
  }
}

/// Rows of the transposed state that stay in registers from token to token. They meet in the sums over V
/// only, and these are carried from one group of rows to the next, so that each still runs upwards.
template <class T, int W, bool is_fused, int group>
struct RowGroup {
  using Pack = Lanes<T, W>;
  const RowsBlock<T>& block;
  std::size_t first;  ///< of V

  KDA_CHECK_INLINE T* history(std::size_t t) const { return block.history + t * group * Pack::count; }
  /// What by_prediction has so far: behind the room for V rows of history.
  KDA_CHECK_INLINE T* partial(std::size_t t) const {
    return block.history + (block.tokens * block.value_dim + t) * Pack::count;
  }
  KDA_CHECK_INLINE Pack carried(const T* sum) const { return first == 0 ? Pack::zero() : Pack::load(sum); }

  /// P_t, and S_t do_t.
  KDA_CHECK_INLINE void forwards() const {
    Pack s[group];
    for (int r = 0; r < group; ++r) s[r] = Pack::load(block.state + (first + r) * Pack::count);
    for (std::size_t t = 0; t < block.tokens; ++t) {
      const T *const write = block.write + t * block.value_stride + first, *const d_o =
                                                                               block.output_gradient +
                                                                               t * block.value_stride + first;
      const Pack key = Pack::load(block.k + t * block.key_stride);
      const Pack decay = Pack::load(block.decay + t * block.key_stride);
      Pack dq = carried(block.dq + t * block.key_stride);
      for (int r = 0; r < group; ++r) {
        const Pack p = s[r] * decay;
        p.store(history(t) + r * Pack::count);
        s[r] = multiply_add<is_fused>(write[r], key, p);
        dq = multiply_add<is_fused>(d_o[r], s[r], dq);
      }
      dq.store(block.dq + t * block.key_stride);
    }
    for (int r = 0; r < group; ++r) s[r].store(block.state + (first + r) * Pack::count);
  }

  KDA_CHECK_INLINE void backwards() const {
    Pack gradient[group];
    for (int r = 0; r < group; ++r) gradient[r] = Pack::load(block.gradient + (first + r) * Pack::count);
    for (std::size_t t = block.tokens; t-- > 0;) {
      const T *const write = block.write + t * block.value_stride + first,
                     *const d_o = block.output_gradient + t * block.value_stride + first,
                     *const y = block.prediction_gradient + t * block.value_stride + first;
      const Pack q = Pack::load(block.q + t * block.key_stride);
      const Pack opposite_key = -Pack::load(block.read_key() + t * block.key_stride);
      const Pack decay = Pack::load(block.decay + t * block.key_stride);
      Pack by_write = carried(block.dk + t * block.key_stride), by_prediction = carried(partial(t)),
           dg = carried(block.dg + t * block.key_stride);
      for (int r = 0; r < group; ++r) {
        const Pack p = Pack::load(history(t) + r * Pack::count);
        Pack d = multiply_add<is_fused>(d_o[r], q, gradient[r]);  // D_t
        by_write = multiply_add<is_fused>(write[r], d, by_write);
        by_prediction = multiply_add<is_fused>(y[r], p, by_prediction);
        d = multiply_add<is_fused>(y[r], opposite_key, d);  // D'_t = D_t - k_t (beta_t r_t)^T
        dg = multiply_add<is_fused>(d, p, dg);
        gradient[r] = d * decay;
      }
      const bool is_last = first + group == block.value_dim;
      const bool is_apart = block.dread != nullptr;
      (is_last && !is_apart ? by_write - by_prediction : by_write).store(block.dk + t * block.key_stride);
      by_prediction.store(partial(t));
      if (is_last && is_apart) (-by_prediction).store(block.dread + t * block.key_stride);
      dg.store(block.dg + t * block.key_stride);
    }
    for (int r = 0; r < group; ++r) gradient[r].store(block.gradient + (first + r) * Pack::count);
  }
};

template <class T, int W, bool is_fused>
void row_gradients_tile(const RowsBlock<T>& block) {
  constexpr int group = 8;
  std::size_t v = 0;
  for (; v + group <= block.value_dim; v += group) {
    const RowGroup<T, W, is_fused, group> rows{block, v};
    rows.forwards();
    rows.backwards();
  }
  for (; v < block.value_dim; ++v) {
    const RowGroup<T, W, is_fused, 1> row{block, v};
    row.forwards();
    row.backwards();
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
