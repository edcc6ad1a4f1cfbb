// Aqk and L of one chunk (F2, F3 of docs/kda.md, "Stages") in the decay forms of docs/arithmetic.md, "decay".
// Natural-log gates.
#pragma once

#include "kda/kernels/elements/decays.hpp"
#include "kda/kernels/sums/product.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template <class T>
struct ScoreScratch {
  T* q_left;    ///< [rows][key_stride] q 2^(G - a)
  T* k_left;    ///< [rows][key_stride] k 2^(G - a)
  T* k_right;   ///< [key_dim][16] k 2^(a - G), transposed
  T* exponent;  ///< [key_stride]
  T* q_scores;  ///< [rows][16]
  T* k_scores;  ///< [rows][16]
};

/// What operands of the scores left of the diagonal's block are rounded to.
template <class T>
KDA_CHECK_THREAD Rounding rounding_left(const ChunkBlock<T>& chunk) {
  const CastPoints& casts = chunk.casts;
  return casts.off_diagonal != Rounding::none ? casts.off_diagonal : casts.score_operands;
}

/// How the scores are summed: by a tensor core where both operands were made for it.
template <class T>
KDA_CHECK_THREAD SumOrder score_order(const ChunkBlock<T>& chunk, Rounding operands) {
  return product_order(chunk.operations, tensor_core(chunk.operations.reduction, operands),
                       chunk.casts.tensor_core);
}

/// Where channel k stands among the operands of the scores.
template <class T>
KDA_CHECK_THREAD std::size_t place_of(const ChunkBlock<T>& chunk, std::size_t k) {
  return chunk.operations.interleaves_scores ? k / 16 * 16 + k % 2 * 8 + k % 16 / 2 : k;
}
template <class T>
KDA_CHECK_THREAD std::size_t places(const ChunkBlock<T>& chunk) {
  return chunk.operations.interleaves_scores ? (chunk.key_dim + 15) / 16 * 16 : chunk.key_dim;
}

/// An operand of q times scale, where that is multiplied there.
template <class T>
KDA_CHECK_TEAM void scale_q(const ChunkBlock<T>& chunk, Rounding rounding, T* x, std::size_t count) {
  if (chunk.operations.scale != ScaledPart::q) return;
  const T scale = rounded(rounding, chunk.scale);
  each(count, [=](std::size_t e) KDA_CHECK_BODY { x[e] = rounded(rounding, x[e] * scale); });
}

/// The same before it is rounded.
template <class T>
KDA_CHECK_TEAM void scale_q_late(const ChunkBlock<T>& chunk, T* x, std::size_t count) {
  if (chunk.operations.scale != ScaledPart::q_late) return;
  each(count, [=, scale = chunk.scale](std::size_t e) KDA_CHECK_BODY { x[e] = x[e] * scale; });
}

/// beta of a key that writes, where it has one: x beta, else x.
template <class T>
KDA_CHECK_THREAD T with_beta(const ChunkBlock<T>& chunk, std::size_t row, T x) {
#ifdef __CUDACC__
  return x;  // it is in rows there
#else
  return chunk.operations.beta == BetaPart::keys ? chunk.beta[row] * x : x;
#endif
}

/// Rows [from, to) of q and of what is read along times exp(G - anchor), rounded.
template <class T>
KDA_CHECK_TEAM_CALLED void scale_left(const ChunkBlock<T>& chunk, std::size_t from, std::size_t to,
                                      const T* anchor, Rounding rounding, const ScoreScratch<T>& scratch) {
  const std::size_t stride = chunk.key_stride, first = from * stride;
  const T *const q = chunk.q + first, *const key = chunk.read + first, *const G = chunk.G + first;
  T *const q_left = scratch.q_left, *const k_left = scratch.k_left;
  if (places(chunk) > chunk.key_dim)
    each(to - from, places(chunk), [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
      q_left[i * stride + k] = k_left[i * stride + k] = 0;
    });
  each_decay(
      chunk, to - from, scratch.exponent,
      [=](std::size_t i, std::size_t k) KDA_CHECK_BODY { return difference(G + i * stride, anchor, k); },
      [=, &chunk](std::size_t i, std::size_t k, T decay)
          KDA_CHECK_BODY { q_left[i * stride + place_of(chunk, k)] = q[i * stride + k] * decay; },
      [=, &chunk](std::size_t i, std::size_t k, T decay)
          KDA_CHECK_BODY { k_left[i * stride + place_of(chunk, k)] = key[i * stride + k] * decay; });
  scale_q_late(chunk, q_left, (to - from) * stride);
  round_array(rounding, q_left, (to - from) * stride);
  scale_q(chunk, rounding, q_left, (to - from) * stride);
  round_array(rounding, k_left, (to - from) * stride);
}

/// Columns [first, first + 16): k exp(anchor - G), rounded, one row per channel; columns beyond the chunk are
/// zero.
template <class T>
KDA_CHECK_TEAM_CALLED void scale_right(const ChunkBlock<T>& chunk, std::size_t first, const T* anchor,
                                       Rounding rounding, const ScoreScratch<T>& scratch) {
  const std::size_t stride = chunk.key_stride, there = chunk.rows - first < 16 ? chunk.rows - first : 16;
  const T *const key = chunk.k + first * stride, *const G = chunk.G + first * stride;
  T* const k_right = scratch.k_right;
  if (places(chunk) > chunk.key_dim)
    each(places(chunk) * 16, [=](std::size_t e) KDA_CHECK_BODY { k_right[e] = T(0); });
  each_growth(
      chunk, there, scratch.exponent,
      [=](std::size_t j, std::size_t k) KDA_CHECK_BODY { return difference(anchor, G + j * stride, k); },
      [=, &chunk](std::size_t j, std::size_t k, T decay) KDA_CHECK_BODY {
        k_right[place_of(chunk, k) * 16 + j] = with_beta(chunk, first + j, key[j * stride + k]) * decay;
      });
  each(16 - there, places(chunk),
       [=](std::size_t j, std::size_t k) KDA_CHECK_BODY { k_right[k * 16 + there + j] = T(0); });
  round_array(rounding, k_right, places(chunk) * 16);
}

/// Scores of rows [from, to) against 16 columns, with the mask a selection: what a masked entry holds never
/// matters. `are_factored`: of operands, in which q has the scale where that is there.
template <class T>
KDA_CHECK_TEAM_CALLED void keep_lower(const ChunkBlock<T>& chunk, std::size_t from, std::size_t to,
                                      std::size_t first, const ScoreScratch<T>& scratch, bool are_factored,
                                      bool beta_applied) {
  const Rounding rounding = chunk.casts.scores;
  const ScaledPart part = chunk.operations.scale;
  const bool is_in_q = part == ScaledPart::q || part == ScaledPart::q_late;
  const bool is_apart = part == ScaledPart::output || (is_in_q && are_factored);
  beta_applied = beta_applied || chunk.operations.beta == BetaPart::keys;
  const T scale = is_apart ? T(1) : chunk.scale;
  each(to - from, 16, [&](std::size_t row, std::size_t column) KDA_CHECK_BODY {
    const std::size_t i = from + row, j = first + column, local = row * 16 + column,
                      at = i * chunk.score_stride + j;
    chunk.Aqk[at] = j <= i ? scale * scratch.q_scores[local] : T(0);
    const T score = beta_applied
                        ? scratch.k_scores[local]
                        : rounded(rounding, chunk.beta[i]) * rounded(rounding, scratch.k_scores[local]);
    chunk.L[at] = j < i ? score : T(0);
  });
}

template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void factored_scores(const ChunkBlock<T>& chunk, std::size_t from, std::size_t to,
                                           std::size_t first, const T* anchor, Rounding rounding,
                                           const ScoreScratch<T>& scratch) {
  scale_right(chunk, first, anchor, rounding, scratch);
  const SumOrder order = score_order(chunk, rounding);
  product<T, is_fused>(order, to - from, 16, places(chunk), Factor<T>{scratch.q_left, chunk.key_stride, 1},
                       scratch.k_right, 16, scratch.q_scores, 16, Start::zero);
  product<T, is_fused>(order, to - from, 16, places(chunk), Factor<T>{scratch.k_left, chunk.key_stride, 1},
                       scratch.k_right, 16, scratch.k_scores, 16, Start::zero);
  keep_lower(chunk, from, to, first, scratch, true, false);
}

#ifdef __CUDACC__

/// Terms weight_d (k_j e^(G_i - G_j))_d of a score.
template <class T>
struct DecayedTerms {
  const T *weights, *key, *G, *G_of_key;
  T beta;
  bool has_beta;
  Exponential exponential;

  __device__ Factors<OneLane<T>> operator()(std::size_t d) const {
    const T decayed = key[d] * exponential_of(exponential, G[d] - G_of_key[d]);
    return {{has_beta ? weights[d] * beta : weights[d]}, {decayed}};
  }
};

/// One exponential for each (i, j, k) with j <= i: sum_k q_ik (k_jk e^(G_ik - G_jk)), and with k_ik beta_i in
/// place of q_ik.
template <class T, bool is_fused>
__device__ void pairwise_scores(const ChunkBlock<T>& chunk, std::size_t from, std::size_t to,
                                std::size_t first, const ScoreScratch<T>& scratch) {
  each(to - from, 16, [&](std::size_t row, std::size_t column) {
    const std::size_t i = from + row, j = first + column, stride = chunk.key_stride;
    if (j > i) return;
    const T *const q = chunk.q + i * stride, *const k = chunk.read + i * stride;
    const SumOrder order{chunk.operations.reduction, is_fused, Adder::thread};
    DecayedTerms<T> terms{
        q,     chunk.k + j * stride,        chunk.G + i * stride, chunk.G + j * stride, chunk.beta[i],
        false, chunk.operations.exponential};
    T q_sum = 0, k_sum = 0;
    if (const std::size_t run = run_of(order, chunk.key_dim); run > 0) {
      for (std::size_t from = 0; from < chunk.key_dim; from += run) {
        T q_run = 0, k_run = 0;
        const std::size_t to = from + run < chunk.key_dim ? from + run : chunk.key_dim;
        for (std::size_t d = from; d < to; ++d) {
          const Factors<OneLane<T>> next = terms(d);
          q_run = scalar_multiply_add<is_fused>(next.a.x, next.b.x, q_run);
          k_run = scalar_multiply_add<is_fused>(k[d] * terms.beta, next.b.x, k_run);
        }
        q_sum = from == 0 ? q_run : q_sum + q_run, k_sum = from == 0 ? k_run : k_sum + k_run;
      }
    } else {
      q_sum = ordered_sum(order, chunk.key_dim, terms, OneLane<T>::zero(), false).x;
      terms.weights = k, terms.has_beta = true;
      k_sum = ordered_sum(order, chunk.key_dim, terms, OneLane<T>::zero(), false).x;
    }
    scratch.q_scores[row * 16 + column] = q_sum, scratch.k_scores[row * 16 + column] = k_sum;
  });
  keep_lower(chunk, from, to, first, scratch, false, true);
}

#else

/// decays[key_dim][16] of the first `columns` columns: k_j e^(G - G_j), or without k e^(G - G_j). What the
/// others hold is left.
template <std::size_t columns, class T>
void decayed_keys(const ChunkBlock<T>& chunk, const T* G, const T* G_columns, const T* k_columns, T* decays) {
  for (std::size_t k = 0; k < chunk.key_dim; ++k)
    for (std::size_t j = 0; j < columns; ++j) decays[k * columns + j] = G[k] - G_columns[k * 16 + j];
  decays_of(chunk.operations, decays, decays, chunk.key_dim * columns);
  for (std::size_t k = chunk.key_dim; k-- > 0;) {  // the last first: rows of 16 lie behind those of fewer
    T row[columns];
    for (std::size_t j = 0; j < columns; ++j)
      row[j] = (k_columns != nullptr ? k_columns[k * 16 + j] : T(1)) * decays[k * columns + j];
    for (std::size_t j = 0; j < columns; ++j) decays[k * 16 + j] = row[j];
  }
}

/// Factors of the scores of `weights`, one row, with those of 16 keys where the decay is on neither alone:
/// left[key_dim][16], beside right.
template <class T>
void early_factors(const ChunkBlock<T>& chunk, const T* weights, const T* other, T* left) {
  for (std::size_t k = 0; k < chunk.key_dim; ++k)
    for (std::size_t j = 0; j < 16; ++j) left[k * 16 + j] = weights[k] * other[k * 16 + j];
}

/// Scores of row i whose decay multiplies the row, or its product with the key: sums along a row of fl(q e) k
/// or fl(q k) e.
template <class T>
void early_scores(const ChunkBlock<T>& chunk, std::size_t i, const T* decays, const T* k_columns, T* left,
                  T* q_scores, T* k_scores) {
  const bool is_of_rows = chunk.decay == DecayForm::pair_rows;
  const T *const inner = is_of_rows ? decays : k_columns, *const outer = is_of_rows ? k_columns : decays;
  SumOrder order = sums_of_rows(chunk.operations);
  order.layout = chunk.operations.pairs;
  const auto score = [&](const T* rows, T* scores) {
    early_factors(chunk, rows + i * chunk.key_stride, inner, left);
    ordered_sum(order, chunk.key_dim, PairedRows<T>{left, outer, 16}, Sixteen<T>::zero(), false)
        .store(scores);
  };
  score(chunk.q, q_scores), score(chunk.read, k_scores);
}

/// One exponential for each (i, j, k) with j <= i, give or take three: sum_k q_ik (k_jk e^(G_ik - G_jk)), and
/// with k_ik beta_i in place of q_ik.
template <class T, bool is_fused>
void pairwise_scores(const ChunkBlock<T>& chunk, std::size_t from, std::size_t to, std::size_t first,
                     const ScoreScratch<T>& scratch) {
  using Pack = Sixteen<T>;
  T* const G_columns = scratch.k_right;  // [key_dim][16]
  T* const k_columns = scratch.k_right + chunk.key_dim * 16;
  for (std::size_t j = 0; j < 16; ++j)
    for (std::size_t k = 0; k < chunk.key_dim; ++k) {
      const bool valid = first + j < chunk.rows;
      G_columns[k * 16 + j] = valid ? chunk.G[(first + j) * chunk.key_stride + k] : T(0);
      k_columns[k * 16 + j] = valid ? chunk.k[(first + j) * chunk.key_stride + k] : T(0);
    }
  T* const decays = scratch.q_left;  // [key_dim][16] of one row
  const bool is_early = chunk.decay == DecayForm::pair_rows || chunk.decay == DecayForm::pair_products;
  const T* const weighted = is_early ? nullptr : k_columns;
  for (std::size_t i = from; i < to; ++i) {
    const T* const G = chunk.G + i * chunk.key_stride;
    if (i < first + 4)
      decayed_keys<4>(chunk, G, G_columns, weighted, decays);
    else if (i < first + 8)
      decayed_keys<8>(chunk, G, G_columns, weighted, decays);
    else if (i < first + 12)
      decayed_keys<12>(chunk, G, G_columns, weighted, decays);
    else
      decayed_keys<16>(chunk, G, G_columns, weighted, decays);
    if (is_early) {
      early_scores(chunk, i, decays, k_columns, scratch.k_left, scratch.q_scores + (i - from) * 16,
                   scratch.k_scores + (i - from) * 16);
      continue;
    }
    const T *const q = chunk.q + i * chunk.key_stride, *const key = chunk.read + i * chunk.key_stride;
    Pack q_sum = Pack::zero(), k_sum = Pack::zero();
    const bool is_along_rows = chunk.operations.reduction.kind == ReductionKind::xla;
    SumOrder order{chunk.operations.reduction, is_fused, is_along_rows ? Adder::warp : Adder::thread};
    order.layout = chunk.operations.pairs;
    if (order.is_running()) {
      for (std::size_t k = 0; k < chunk.key_dim; ++k) {
        const Pack decayed = Pack::load(decays + k * 16);
        q_sum = multiply_add<is_fused>(q[k], decayed, q_sum);
        k_sum = multiply_add<is_fused>(key[k] * chunk.beta[i], decayed, k_sum);
      }
    } else {
      T* const beta_key = scratch.exponent;
      for (std::size_t k = 0; k < chunk.key_dim; ++k) beta_key[k] = key[k] * chunk.beta[i];
      q_sum = ordered_sum(order, chunk.key_dim, WeightedRows<T>{q, 1, decays, 16}, q_sum, false);
      k_sum = ordered_sum(order, chunk.key_dim, WeightedRows<T>{beta_key, 1, decays, 16}, k_sum, false);
    }
    q_sum.store(scratch.q_scores + (i - from) * 16);
    k_sum.store(scratch.k_scores + (i - from) * 16);
  }
  keep_lower(chunk, from, to, first, scratch, false, !is_early);
}

#endif

/// Scores of rows [from, to), which share anchors, against all columns up to their diagonal block's end.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void score_rows(const ChunkBlock<T>& chunk, std::size_t from, std::size_t to,
                                      const ScoreScratch<T>& scratch) {
  const T* const first_row = chunk.G + from * chunk.key_stride;
  const T* anchor = first_row;
  if (starts_before(chunk.decay)) anchor = from == 0 ? nullptr : first_row - chunk.key_stride;
  const Rounding left = rounding_left(chunk), inside = chunk.casts.score_operands;
  if (!is_pairwise(chunk.decay)) scale_left(chunk, from, to, anchor, left, scratch);
  for (std::size_t column = 0; column < from; column += 16) {
    if (is_pairwise(chunk.decay)) {
      pairwise_scores<T, is_fused>(chunk, from, to, column, scratch);
    } else {
      factored_scores<T, is_fused>(chunk, from, to, column, anchor, left, scratch);
    }
  }
  if (chunk.decay == DecayForm::anchor_mid) {
    const std::size_t half = chunk.anchor_rows / 2, middle = half < to - from ? half : to - from - 1;
    anchor = first_row + middle * chunk.key_stride;
    scale_left(chunk, from, to, anchor, inside, scratch);
  } else if (chunk.bounds != nullptr) {
    anchor = chunk.bounds + from / chunk.anchor_rows * chunk.key_stride;
    scale_left(chunk, from, to, anchor, inside, scratch);
  } else if (left != inside && !is_pairwise(chunk.decay)) {
    scale_left(chunk, from, to, anchor, inside, scratch);
  }
  for (std::size_t column = from; column < to; column += 16) {
    if (is_pairwise(chunk.decay) || chunk.decay == DecayForm::anchor_pair) {
      pairwise_scores<T, is_fused>(chunk, from, to, column, scratch);
    } else {
      factored_scores<T, is_fused>(chunk, from, to, column, anchor, inside, scratch);
    }
  }
}

/// Fills Aqk and L, zeros above the diagonal included, up to the next multiple of 16 columns.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void scores(const ChunkBlock<T>& chunk, const ScoreScratch<T>& scratch) {
  const std::size_t n = chunk.rows, columns = (n + 15) / 16 * 16;
  const std::size_t group = is_pairwise(chunk.decay) ? 16 : chunk.anchor_rows;
  for (std::size_t from = 0; from < n; from += group) {
    const std::size_t to = from + group < n ? from + group : n, behind = (to + 15) / 16 * 16;
    score_rows<T, is_fused>(chunk, from, to, scratch);
    each(to - from, columns - behind, [&](std::size_t row, std::size_t column) KDA_CHECK_BODY {
      const std::size_t at = (from + row) * chunk.score_stride + behind + column;
      chunk.Aqk[at] = 0, chunk.L[at] = 0;
    });
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
