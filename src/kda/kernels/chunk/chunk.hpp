// The staged chunk form, F2 to F11 of docs/kda.md, "Stages", with the cast points of "FLA chunk forward"
// where the arithmetic asks for them.
#pragma once

#include "kda/kernels/chunk/operands.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// e = v - prediction
template <class T>
KDA_CHECK_TEAM_CALLED void errors_of(const ChunkBlock<T>& chunk, const T* prediction, T* error) {
  const std::size_t stride = chunk.value_stride;
  const T* const v = chunk.v;
  each(chunk.rows * stride, [=, rounding = chunk.casts.residual](std::size_t e)
                                KDA_CHECK_BODY { error[e] = rounded(rounding, v[e] - prediction[e]); });
}
/// beta e, as an operand; without beta: e.
template <class T>
KDA_CHECK_TEAM_CALLED void weigh_errors(const ChunkBlock<T>& chunk, const T* error, bool has_beta,
                                        T* weighted) {
  const std::size_t n = chunk.rows, stride = chunk.value_stride;
  const T* const beta = chunk.beta;
  each(n, stride, [=, rounding = chunk.casts.residual](std::size_t i, std::size_t v) KDA_CHECK_BODY {
    weighted[i * stride + v] = error[i * stride + v] * (has_beta ? rounded(rounding, beta[i]) : T(1));
  });
  round_array(chunk.casts.operands, weighted, n * stride);
}

/// What the state predicts along the rows of `keys`: one sum, or that of `blocked_channels` after the other.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void predict(const ChunkBlock<T>& chunk, const ChunkWork<T>& work, const T* keys,
                                   const T* h, T* rows) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, k_stride = chunk.key_stride,
                    v_stride = chunk.value_stride, v_columns = (chunk.value_dim + 15) / 16 * 16;
  const SumOrder order = product_order(chunk, chunk.casts.operands);
  const bool is_blocked = chunk.operations.delta == Delta::blocked;
  const std::size_t depth = is_blocked && K > blocked_channels ? blocked_channels : K;
  product<T, is_fused>(order, n, v_columns, depth, Factor<T>{keys, k_stride, 1}, h, v_stride, rows, v_stride,
                       Start::zero);
  T* const next = work.operand;
  for (std::size_t first = depth; first < K; first += depth) {
    const std::size_t channels = K - first < depth ? K - first : depth;
    product<T, is_fused>(order, n, v_columns, channels, Factor<T>{keys + first, k_stride, 1},
                         h + first * v_stride, v_stride, next, v_stride, Start::zero);
    each(n, v_columns, [=](std::size_t i, std::size_t v) KDA_CHECK_BODY {
      rows[i * v_stride + v] = rows[i * v_stride + v] + next[i * v_stride + v];
    });
  }
}

/// v_new from h: u - w h, or A (beta (v - (k e^G) h)).
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void new_values(const ChunkBlock<T>& chunk, const ChunkWork<T>& work, const T* h) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, k_stride = chunk.key_stride,
                    v_stride = chunk.value_stride, v_columns = (chunk.value_dim + 15) / 16 * 16;
  const CastPoints& casts = chunk.casts;
  const bool is_wy = chunk.operations.delta != Delta::residual;
  if (chunk.operations.delta == Delta::chained) {
    T *const rows = chunk.v_new, *const negated = work.operand;
    const T *const u = used(chunk.given.u, chunk.u), *const w = used(chunk.given.w, chunk.w);
    each(n * v_stride, [=](std::size_t e) KDA_CHECK_BODY { rows[e] = u[e]; });
    each(n * k_stride, [=](std::size_t e) KDA_CHECK_BODY { negated[e] = w[e] * T(-1); });
    product<T, is_fused>(product_order(chunk, casts.operands), n, v_columns, K,
                         Factor<T>{negated, k_stride, 1}, h, v_stride, rows, v_stride, Start::from_result);
    return round_array(casts.v_new, rows, n * v_stride);
  }
  const T* const keys = is_wy ? used(chunk.given.w, chunk.w) : work.operand;
  T* const rows = chunk.v_new;
  predict<T, is_fused>(chunk, work, keys, h, rows);
  round_array(casts.prediction, rows, n * v_stride);
  if (is_wy) {
    const T* const u = used(chunk.given.u, chunk.u);
    each(n * v_stride, [=](std::size_t e) KDA_CHECK_BODY { rows[e] = u[e] - rows[e]; });  // F9
  } else {
    T* const residual = work.operand;
    errors_of(chunk, rows, residual);
    weigh_errors(chunk, residual, is_in_rows(chunk.operations.beta), residual);
    lower_product<T, is_fused>(chunk, solving(chunk, work), residual, v_columns, v_stride, rows, Start::zero);
  }
  round_array(casts.v_new, rows, n * v_stride);
}

/// F8, F9: h, the state as an operand, and v_new = u - w h.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void read_state(const ChunkBlock<T>& chunk, const ChunkWork<T>& work) {
  const std::size_t K = chunk.key_dim, v_stride = chunk.value_stride;
  const CastPoints& casts = chunk.casts;
  T *const state = chunk.state, *const copy = chunk.h;
  each(K * v_stride, [=](std::size_t e) KDA_CHECK_BODY { copy[e] = state[e]; });  // F8
  round_array(casts.state, copy, K * v_stride);
  const T* const h = used(chunk.given.h, chunk.h);
  if (chunk.given.h != nullptr) each(K * v_stride, [=](std::size_t e) KDA_CHECK_BODY { state[e] = h[e]; });
  new_values<T, is_fused>(chunk, work, h);
}

template <class T>
struct ReadoutFactors {
  const T *qg, *h;
};

/// What o reads the state with: qg and h as they are, or decays of both from an anchor on.
template <class T>
KDA_CHECK_TEAM ReadoutFactors<T> readout_factors(const ChunkBlock<T>& chunk, const ChunkWork<T>& work,
                                                 const ReadoutFactors<T>& whole) {
#ifndef __CUDACC__
  const Readout from = chunk.operations.readout;
  if (from == Readout::start) return whole;
  const std::size_t n = chunk.rows, K = chunk.key_dim, stride = chunk.key_stride,
                    v_stride = chunk.value_stride;
  const T *const G = chunk.G, *const last = end_of(chunk), *const q = chunk.q;
  T *const anchor = work.scores.exponent, *const decay = work.decay, *const qg = work.operand,
           *const h = work.anchored;
  for (std::size_t k = 0; k < K; ++k) anchor[k] = from == Readout::first ? G[k] : (G[k] + last[k]) * T(0.5);
  each_decay(
      chunk, n, decay, [=](std::size_t i, std::size_t k) { return G[i * stride + k] - anchor[k]; },
      [=](std::size_t i, std::size_t k, T grown) { qg[i * stride + k] = q[i * stride + k] * grown; });
  scale_q_late(chunk, qg, n * stride);
  round_array(chunk.casts.operands, qg, n * stride);
  decays_of(chunk.operations, anchor, decay, K);
  for (std::size_t k = 0; k < K; ++k)
    for (std::size_t v = 0; v < v_stride; ++v) h[k * v_stride + v] = whole.h[k * v_stride + v] * decay[k];
  round_array(chunk.casts.state, h, K * v_stride);
  return {qg, h};
#else
  return whole;
#endif
}

/// F10: o = scale (qg h) + Aqk v_new.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void output(const ChunkBlock<T>& chunk, const ChunkWork<T>& work) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, k_stride = chunk.key_stride,
                    v_stride = chunk.value_stride, v_columns = (chunk.value_dim + 15) / 16 * 16;
  const CastPoints& casts = chunk.casts;
  T* const o = chunk.o;
  const T *const h = used(chunk.given.h, chunk.h), *const v_new = used(chunk.given.v_new, chunk.v_new);
  const SumOrder order = product_order(chunk, casts.operands);
  ReadoutFactors<T> factors =
      readout_factors(chunk, work, ReadoutFactors<T>{used(chunk.given.qg, chunk.qg), h});
  if (chunk.operations.scale == ScaledPart::q) {
    T* const scaled = work.operand;
    const T* const qg = factors.qg;
    each(n * k_stride, [=](std::size_t e) KDA_CHECK_BODY { scaled[e] = qg[e]; });
    scale_q(chunk, casts.operands, scaled, n * k_stride);
    factors.qg = scaled;
  }
  product<T, is_fused>(order, n, v_columns, K, Factor<T>{factors.qg, k_stride, 1}, factors.h, v_stride, o,
                       v_stride, Start::zero);
  const auto scale_output = [=, scale = chunk.scale]() KDA_CHECK_BODY {
    each(n * v_stride, [=](std::size_t e) KDA_CHECK_BODY { o[e] = scale * o[e]; });
  };
  const bool scales_scores = chunk.operations.scale == ScaledPart::scores,
             is_late = chunk.operations.output == Output::fused;
  if (scales_scores && !is_late) scale_output();
  round_array(casts.o_inter, o, n * v_stride);
  const T* const Aqk = used(chunk.given.Aqk, chunk.Aqk);
  if (chunk.operations.output != Output::chained) {
    T* const inside = work.operand;
    lower_product<T, is_fused>(chunk, Aqk, v_new, v_columns, v_stride, inside, Start::zero);
    round_array(casts.o_intra, inside, n * v_stride);
    const T scale = scales_scores && is_late ? chunk.scale : T(1);
    each(n, v_columns, [=](std::size_t i, std::size_t v) KDA_CHECK_BODY {
      T& element = o[i * v_stride + v];
      element = scalar_multiply_add<is_fused>(element, scale, inside[i * v_stride + v]);
    });
  } else {
    lower_product<T, is_fused>(chunk, Aqk, v_new, v_columns, v_stride, o, Start::from_result);
  }
  if (chunk.operations.scale == ScaledPart::output) scale_output();
}

/// F11: S = diag(2^Gn) S + kg^T v_new.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void write_state(const ChunkBlock<T>& chunk, const ChunkWork<T>& work) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, k_stride = chunk.key_stride,
                    v_stride = chunk.value_stride, v_columns = (chunk.value_dim + 15) / 16 * 16;
  const CastPoints& casts = chunk.casts;
  T *const state = chunk.state, *const decay = work.decay;
  const T* const v_new = used(chunk.given.v_new, chunk.v_new);
  const SumOrder order = product_order(chunk, casts.operands);
  decays_of(chunk.operations, end_of(chunk), decay, K);
  round_array(casts.decay, decay, K);
  const Factor<T> keys{used(chunk.given.kg, chunk.kg), 1, k_stride};
  const Subnormals subnormals = chunk.operations.subnormals;
  if (subnormals == Subnormals::flush) {
    each(K, [=](std::size_t k) KDA_CHECK_BODY { decay[k] = flushed(subnormals, decay[k]); });
    each(K * v_stride, [=](std::size_t e) KDA_CHECK_BODY { state[e] = flushed(subnormals, state[e]); });
  }
  if (chunk.operations.update == Update::added) {
    T* const writes = work.operand;
    for (std::size_t first = 0; first < K; first += n) {
      const std::size_t channels = K - first < n ? K - first : n;
      product<T, is_fused>(order, channels, v_columns, n, Factor<T>{keys.data + first, 1, k_stride}, v_new,
                           v_stride, writes, v_stride, Start::zero);
      each(channels, v_columns, [=](std::size_t k, std::size_t v) KDA_CHECK_BODY {
        T& element = state[(first + k) * v_stride + v];
        const T write = flushed(subnormals, writes[k * v_stride + v]);
        element = flushed(subnormals, scalar_multiply_add<is_fused>(element, decay[first + k], write));
      });
    }
  } else {
    each(K, v_columns, [=](std::size_t k, std::size_t v) KDA_CHECK_BODY {
      state[k * v_stride + v] = flushed(subnormals, state[k * v_stride + v] * decay[k]);
    });
    product<T, is_fused>(order, K, v_columns, n, keys, v_new, v_stride, state, v_stride, Start::from_result);
  }
  round_array(casts.carry, state, K * v_stride);
}

template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void through_state(const ChunkBlock<T>& chunk, const ChunkWork<T>& work) {
  read_state<T, is_fused>(chunk, work);
  output<T, is_fused>(chunk, work);
  write_state<T, is_fused>(chunk, work);
}

/// F2 to F4.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void scores_and_inverse(const ChunkBlock<T>& chunk, const ChunkWork<T>& work) {
  const std::size_t n = chunk.rows, size = n * chunk.score_stride;
  const CastPoints& casts = chunk.casts;
  scores<T, is_fused>(chunk, work.scores);  // F2, F3
  round_array(casts.Aqk, chunk.Aqk, size);
  round_array(casts.L, chunk.L, size);
  const Subnormals subnormals = chunk.operations.subnormals;
  if (subnormals == Subnormals::flush)
    each(size, [=, l = chunk.L](std::size_t e) KDA_CHECK_BODY { l[e] = flushed(subnormals, l[e]); });
  SumOrder order = product_order(chunk, casts.inverse_operands, chunk.operations.accumulator);
  order.layout = chunk.operations.substitution;
  const InverseWay way{
      chunk.inverse, chunk.inverse_rows,    chunk.operations.merge, chunk.operations.merge_rows,
      subnormals,    casts.inverse_operands};
#ifndef __CUDACC__
  if (chunk.inverse == InverseForm::solve) {
    T* const x = chunk.Akk_inv;
    each(n, chunk.score_stride, [=, stride = chunk.score_stride](std::size_t i, std::size_t j) {
      x[i * stride + j] = i == j ? T(1) : T(0);
    });
    solve<T, is_fused>(solution_of(chunk), chunk.L, chunk.score_stride, (n + 15) / 16 * 16, x,
                       chunk.score_stride, work.inverse);
    return round_array(casts.Akk_inv, x, size);
  }
#endif
  invert<T, is_fused>(way, order, n, chunk.L, chunk.Akk_inv, chunk.score_stride, work.inverse);  // F4
  round_array(casts.Akk_inv, chunk.Akk_inv, size);
}

template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void chunk_forward(const ChunkBlock<T>& chunk) {
  const ChunkWork<T> work(chunk);
  scores_and_inverse<T, is_fused>(chunk, work);
  operands<T, is_fused>(chunk, work);
  through_state<T, is_fused>(chunk, work);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
