// What a chunk multiplies its state with, F5 to F7 of docs/kda.md, "Stages", from its scores and their
// inverse; and what all of the chunk form shares.
#pragma once

#include "kda/kernels/chunk/inverse.hpp"
#include "kda/kernels/chunk/scores.hpp"
#include "kda/kernels/chunk/solve.hpp"

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

#ifndef __CUDACC__
template <class T>
SolutionWay solution_of(const ChunkBlock<T>& chunk) {
  const Rounding rounding = chunk.casts.inverse_operands;
  return {product_order(chunk, rounding, chunk.operations.accumulator), chunk.rows, chunk.inverse_rows,
          rounding};
}
#endif

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
  T* anchored;  ///< [key_dim][value_stride], the state as it is read from an anchor on

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
    weighted = take(sizes.weighted), anchored = take(sizes.anchored);
  }
};

/// e^(G_n - G), the decay from each row to the end of the chunk: use(row, k, decay).
template <class T, class Use>
KDA_CHECK_TEAM void each_tail(const ChunkBlock<T>& chunk, T* line, Use use) {
  const std::size_t stride = chunk.key_stride;
  const T *const last = end_of(chunk), *const G = chunk.G, *const tail = chunk.tail;
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
    decays_of(chunk.operations, end_of(chunk), decay, K);
    round_array(casts.exponentials, decay, K);
    each(n, K, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
      kg[i * stride + k] = kg[i * stride + k] * decay[k];
    });
  } else {
    each_tail(chunk, decay, [=, &chunk](std::size_t i, std::size_t k, T to_end) KDA_CHECK_BODY {
      kg[i * stride + k] = with_beta(chunk, i, key[i * stride + k]) * to_end;
    });
  }
  round_array(casts.kg != Rounding::none ? casts.kg : casts.operands, kg, n * stride);
}

/// qg = q e^G and, in work.operand, k e^G, with beta or without.
template <class T>
KDA_CHECK_TEAM_CALLED void decay_from_start(const ChunkBlock<T>& chunk, const ChunkWork<T>& work,
                                            bool has_beta) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, stride = chunk.key_stride;
  const CastPoints& casts = chunk.casts;
  T *const operand = work.operand, *const qg = chunk.qg;
  const T *const q = chunk.q, *const key = chunk.read, *const beta = chunk.beta, *const G = chunk.G;
  const bool is_late = chunk.operations.beta == BetaPart::rows_late, is_early = has_beta && !is_late;
  each(n, stride, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
    const T factor = is_early ? beta[i] : T(1);
    operand[i * stride + k] = k < K ? key[i * stride + k] * factor : T(0);
  });
  if (is_early) round_array(casts.beta_key, operand, n * stride);
  each_decay(
      chunk, n, work.decay, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY { return G[i * stride + k]; },
      [=](std::size_t i, std::size_t k, T decay)
          KDA_CHECK_BODY { qg[i * stride + k] = q[i * stride + k] * decay; },
      [=](std::size_t i, std::size_t k, T decay)
          KDA_CHECK_BODY { operand[i * stride + k] = operand[i * stride + k] * decay; });
  if (has_beta && is_late)
    each(n, stride, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
      operand[i * stride + k] = operand[i * stride + k] * beta[i];
    });
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

/// work.operand multiplied by A, or by the inverse of which nothing is formed.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void through_inverse(const ChunkBlock<T>& chunk, const ChunkWork<T>& work, const T* a,
                                           std::size_t columns, std::size_t stride, T* result) {
#ifndef __CUDACC__
  if (chunk.inverse == InverseForm::solve && chunk.operations.beta != BetaPart::columns) {
    each(chunk.rows * stride, [=](std::size_t e) KDA_CHECK_BODY { result[e] = work.operand[e]; });
    return solve<T, is_fused>(solution_of(chunk), chunk.L, chunk.score_stride, columns, result, stride,
                              work.inverse);
  }
#endif
  lower_product<T, is_fused>(chunk, a, work.operand, columns, stride, result, Start::zero);
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
  const bool is_wy = chunk.operations.delta != Delta::residual, in_rows = is_in_rows(chunk.operations.beta);
  if (is_wy || chunk.forms_w) {
    T* const operand = work.operand;
    const T *const v = chunk.v, *const beta = chunk.beta;
    each(n, v_stride, [=](std::size_t i, std::size_t e) KDA_CHECK_BODY {
      operand[i * v_stride + e] = v[i * v_stride + e] * (in_rows ? beta[i] : T(1));
    });
    round_array(casts.operands, operand, n * v_stride);
    through_inverse<T, is_fused>(chunk, work, A, v_columns, v_stride, chunk.u);  // F5
    round_array(casts.u, chunk.u, n * v_stride);
    decay_from_start(chunk, work, in_rows);
    through_inverse<T, is_fused>(chunk, work, A, k_columns, k_stride, chunk.w);  // F6
    round_array(casts.w, chunk.w, n * k_stride);
  }
  if (!is_wy) decay_from_start(chunk, work, false);
  tail_keys(chunk, work);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
