// The staged chunk form, F2 to F11 of docs/kda.md, "Stages", with the cast points of "FLA chunk forward"
// where the arithmetic asks for them.
#pragma once

#include "kda/kernels/inverse.hpp"
#include "kda/kernels/scores.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template <class T>
KDA_CHECK_THREAD SumOrder product_order(const ChunkBlock<T>& chunk, Rounding operands,
                                        Accumulator accumulator = Accumulator::fp32) {
  return product_order(chunk.operations, tensor_core(chunk.operations.reduction, operands, accumulator),
                       chunk.casts.tensor_core);
}

/// Rows of A against `right`, 16 at a time: row i of a lower triangular A has nothing beyond column i.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void lower_product(const ChunkBlock<T>& chunk, const T* a, const T* right,
                                         std::size_t columns, std::size_t stride, T* result, Start start) {
  const SumOrder order = product_order(chunk, chunk.casts.operands);
  for (std::size_t from = 0; from < chunk.rows; from += 16) {
    const std::size_t to = from + 16 < chunk.rows ? from + 16 : chunk.rows;
    product<T, is_fused>(order, to - from, columns, to,
                         Factor<T>{a + from * chunk.score_stride, chunk.score_stride, 1}, right, stride,
                         result + from * stride, stride, start);
  }
}

template <class T>
KDA_CHECK_THREAD const T* used(const T* given, const T* computed) {
  return given != nullptr ? given : computed;
}

/// The pieces of scratch memory.
template <class T>
struct ChunkWork {
  T* operand;  ///< [n][the wider stride]
  ScoreScratch<T> scores;
  T *inverse, *decay;
  T* weighted;  ///< [n][score_stride], the inverse with beta in its columns

  KDA_CHECK_TEAM explicit ChunkWork(const ChunkBlock<T>& chunk) {
    const ChunkScratch sizes(chunk.rows, chunk.key_stride, chunk.value_stride);
    T* next = chunk.scratch;
    const auto take = [&next](std::size_t count) KDA_CHECK_BODY {
      T* const memory = next;
      next += count;
      return memory;
    };
    operand = take(sizes.operand);
    scores.q_left = take(sizes.left), scores.k_left = take(sizes.left), scores.k_right = take(sizes.right);
    scores.exponent = take(sizes.row);
    scores.q_scores = take(sizes.scores), scores.k_scores = take(sizes.scores);
    inverse = take(sizes.inverse), decay = take(sizes.row);
    weighted = take(sizes.weighted);
  }
};

/// e^(G_n - G), the decay from each row to the end of the chunk: use(row, k, decay).
template <class T, class Use>
KDA_CHECK_TEAM void each_tail(const ChunkBlock<T>& chunk, T* line, Use use) {
  const std::size_t stride = chunk.key_stride;
  const T *const last = chunk.G + (chunk.rows - 1) * stride, *const G = chunk.G, *const tail = chunk.tail;
  each_decay(
      chunk, chunk.rows, line,
      [=](std::size_t i, std::size_t k)
          KDA_CHECK_BODY { return tail != nullptr ? tail[i * stride + k] : last[k] - G[i * stride + k]; },
      use);
}

/// F7: kg = k e^(Gn - G).
template <class T>
KDA_CHECK_TEAM_CALLED void tail_keys(const ChunkBlock<T>& chunk, const ChunkWork<T>& work) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, stride = chunk.key_stride;
  const CastPoints& casts = chunk.casts;
  T *const kg = chunk.kg, *const decay = work.decay;
  const T *const key = chunk.k, *const G = chunk.G;
  if (chunk.operations.has_factored_tail) {
    each_growth(
        chunk, n, decay, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY { return -G[i * stride + k]; },
        [=, &chunk](std::size_t i, std::size_t k, T inverse)
            KDA_CHECK_BODY { kg[i * stride + k] = with_beta(chunk, i, key[i * stride + k]) * inverse; });
    if (chunk.operations.rounds_tail) round_array(casts.score_operands, kg, n * stride);
    decays_of(chunk.operations, G + (n - 1) * stride, decay, K);
    round_array(casts.exponentials, decay, K);
    each(n, K, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
      kg[i * stride + k] = kg[i * stride + k] * decay[k];
    });
  } else {
    each_tail(chunk, decay, [=, &chunk](std::size_t i, std::size_t k, T to_end) KDA_CHECK_BODY {
      kg[i * stride + k] = with_beta(chunk, i, key[i * stride + k]) * to_end;
    });
  }
  round_array(casts.operands, kg, n * stride);
}

/// qg = q e^G and, in work.operand, k e^G, with beta or without.
template <class T>
KDA_CHECK_TEAM_CALLED void decay_from_start(const ChunkBlock<T>& chunk, const ChunkWork<T>& work,
                                            bool has_beta) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, stride = chunk.key_stride;
  const CastPoints& casts = chunk.casts;
  T *const operand = work.operand, *const qg = chunk.qg;
  const T *const q = chunk.q, *const key = chunk.read, *const beta = chunk.beta, *const G = chunk.G;
  each(n, stride, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
    const T factor = has_beta ? beta[i] : T(1);
    operand[i * stride + k] = k < K ? key[i * stride + k] * factor : T(0);
  });
  if (has_beta) round_array(casts.beta_key, operand, n * stride);
  each_decay(
      chunk, n, work.decay, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY { return G[i * stride + k]; },
      [=](std::size_t i, std::size_t k, T decay)
          KDA_CHECK_BODY { qg[i * stride + k] = q[i * stride + k] * decay; },
      [=](std::size_t i, std::size_t k, T decay)
          KDA_CHECK_BODY { operand[i * stride + k] = operand[i * stride + k] * decay; });
  scale_q_late(chunk, qg, n * stride);
  round_array(casts.operands, qg, n * stride);
  round_array(casts.operands, operand, n * stride);
}

/// What multiplies the rows: the inverse, with beta in its columns where that is not in the rows.
template <class T>
KDA_CHECK_TEAM const T* solving(const ChunkBlock<T>& chunk, const ChunkWork<T>& work) {
  const T* const A = used(chunk.given.Akk_inv, chunk.Akk_inv);
  return chunk.operations.beta == BetaPart::columns ? work.weighted : A;
}
template <class T>
KDA_CHECK_TEAM_CALLED void weigh_columns(const ChunkBlock<T>& chunk, const ChunkWork<T>& work) {
  if (chunk.operations.beta != BetaPart::columns) return;
  const std::size_t n = chunk.rows, stride = chunk.score_stride;
  const T *const A = used(chunk.given.Akk_inv, chunk.Akk_inv), *const beta = chunk.beta;
  T* const weighted = work.weighted;
  each(n, stride, [=](std::size_t i, std::size_t j) KDA_CHECK_BODY {
    weighted[i * stride + j] = j <= i ? A[i * stride + j] * beta[j] : T(0);
  });
  round_array(chunk.casts.operands, weighted, n * stride);
}

/// F5 to F7: u = A (beta v), w = A (beta k e^G), qg, kg; with Delta::residual k e^G in work.operand, and u
/// and w for those who ask.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void operands(const ChunkBlock<T>& chunk, const ChunkWork<T>& work) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, k_stride = chunk.key_stride,
                    v_stride = chunk.value_stride;
  const std::size_t k_columns = (K + 15) / 16 * 16, v_columns = (chunk.value_dim + 15) / 16 * 16;
  const CastPoints& casts = chunk.casts;
  weigh_columns(chunk, work);
  const T* const A = solving(chunk, work);
  const bool is_wy = chunk.operations.delta != Delta::residual,
             in_rows = chunk.operations.beta == BetaPart::rows;
  if (is_wy || chunk.forms_w) {
    T* const operand = work.operand;
    const T *const v = chunk.v, *const beta = chunk.beta;
    each(n, v_stride, [=](std::size_t i, std::size_t e) KDA_CHECK_BODY {
      operand[i * v_stride + e] = v[i * v_stride + e] * (in_rows ? beta[i] : T(1));
    });
    round_array(casts.operands, operand, n * v_stride);
    lower_product<T, is_fused>(chunk, A, operand, v_columns, v_stride, chunk.u, Start::zero);  // F5
    round_array(casts.u, chunk.u, n * v_stride);
    decay_from_start(chunk, work, in_rows);
    lower_product<T, is_fused>(chunk, A, operand, k_columns, k_stride, chunk.w, Start::zero);  // F6
    round_array(casts.w, chunk.w, n * k_stride);
  }
  if (!is_wy) decay_from_start(chunk, work, false);
  tail_keys(chunk, work);
}

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
  product<T, is_fused>(product_order(chunk, casts.operands), n, v_columns, K, Factor<T>{keys, k_stride, 1}, h,
                       v_stride, rows, v_stride, Start::zero);
  round_array(casts.prediction, rows, n * v_stride);
  if (is_wy) {
    const T* const u = used(chunk.given.u, chunk.u);
    each(n * v_stride, [=](std::size_t e) KDA_CHECK_BODY { rows[e] = u[e] - rows[e]; });  // F9
  } else {
    T* const residual = work.operand;
    errors_of(chunk, rows, residual);
    weigh_errors(chunk, residual, chunk.operations.beta == BetaPart::rows, residual);
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

/// F10: o = scale (qg h) + Aqk v_new.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void output(const ChunkBlock<T>& chunk, const ChunkWork<T>& work) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, k_stride = chunk.key_stride,
                    v_stride = chunk.value_stride, v_columns = (chunk.value_dim + 15) / 16 * 16;
  const CastPoints& casts = chunk.casts;
  T* const o = chunk.o;
  const T *const h = used(chunk.given.h, chunk.h), *const v_new = used(chunk.given.v_new, chunk.v_new);
  const SumOrder order = product_order(chunk, casts.operands);
  const T* qg = used(chunk.given.qg, chunk.qg);
  if (chunk.operations.scale == ScaledPart::q) {
    T* const scaled = work.operand;
    each(n * k_stride, [=](std::size_t e) KDA_CHECK_BODY { scaled[e] = qg[e]; });
    scale_q(chunk, casts.operands, scaled, n * k_stride);
    qg = scaled;
  }
  product<T, is_fused>(order, n, v_columns, K, Factor<T>{qg, k_stride, 1}, h, v_stride, o, v_stride,
                       Start::zero);
  const auto scale_output = [=, scale = chunk.scale]() KDA_CHECK_BODY {
    each(n * v_stride, [=](std::size_t e) KDA_CHECK_BODY { o[e] = scale * o[e]; });
  };
  if (chunk.operations.scale == ScaledPart::scores) scale_output();
  round_array(casts.o_inter, o, n * v_stride);
  const T* const Aqk = used(chunk.given.Aqk, chunk.Aqk);
  if (chunk.operations.output == Output::apart) {
    T* const inside = work.operand;
    lower_product<T, is_fused>(chunk, Aqk, v_new, v_columns, v_stride, inside, Start::zero);
    round_array(casts.o_intra, inside, n * v_stride);
    each(n, v_columns, [=](std::size_t i, std::size_t v) KDA_CHECK_BODY {
      o[i * v_stride + v] = o[i * v_stride + v] + inside[i * v_stride + v];
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
  decays_of(chunk.operations, chunk.G + (n - 1) * k_stride, decay, K);
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
