// The part of the gradients that stays within a chunk: through exp(G_i - G_j) in Aqk and in L (B4 of
// docs/kda.md, "Chunk backward"), in the decay forms of the forward pass.
//
// Rows that share an anchor a are summed against columns scaled by exp(a - G_j) and then scaled by exp(G_i -
// a); columns against rows scaled by exp(G_i - a). Pairwise forms are the same with every row, or column,
// its own anchor.
#pragma once

#include "kda/kernels/scores.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template <class T>
struct IntraFactors {
  const T *dAqk, *dAkk;  ///< [n][score_stride]
  const T* beta_key;     ///< [n][key_stride] beta k
};

template <class T>
struct IntraBlock {
  IntraFactors<T> plain;    ///< of pairwise sums, which are no product of matrices
  IntraFactors<T> operand;  ///< rounded for products
  T *dq, *row, *column;  ///< [n][key_stride] sums over j of dAqk k, of dAkk k; over i of dAqk q + dAkk beta k
  T *left, *right, *part;  ///< [n][key_stride] scratch
  T* exponent;             ///< [key_stride] scratch
};

/// rows[0, count) = source rows from `first` on times exp of what `anchor` is above (or, `above`, below)
/// them.
template <class T>
KDA_CHECK_TEAM_CALLED void scale_rows(const ChunkBlock<T>& chunk, const T* source, std::size_t first,
                                      std::size_t count, const T* anchor, bool above, bool pairwise,
                                      T* exponent, T* rows) {
  const std::size_t stride = chunk.key_stride, K = chunk.key_dim;
  const T *const from = source + first * stride, *const G = chunk.G + first * stride;
  each_decay(
      chunk, count, exponent,
      [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
        const T* const own = G + i * stride;
        return difference(above ? own : anchor, above ? anchor : own, k);
      },
      [=](std::size_t i, std::size_t k, T decay)
          KDA_CHECK_BODY { rows[i * stride + k] = from[i * stride + k] * decay; });
  each(count, stride - K, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY { rows[i * stride + K + k] = 0; });
  if (!pairwise) round_array(chunk.casts.score_operands, rows, count * stride);
}

/// Pairwise sums are not for tensor cores.
template <class T>
KDA_CHECK_THREAD SumOrder intra_order(const ChunkBlock<T>& chunk, bool pairwise) {
  if (pairwise) return {chunk.operations.reduction, chunk.operations.is_fused, Adder::thread};
  return score_order(chunk);
}

/// target rows [first, first + count) += part exp(...), the other factor of what scale_rows() made.
template <class T>
KDA_CHECK_TEAM_CALLED void add_scaled_rows(const ChunkBlock<T>& chunk, const T* part, std::size_t first,
                                           std::size_t count, const T* anchor, bool above, T* exponent,
                                           T* target) {
  const std::size_t stride = chunk.key_stride;
  const T* const G = chunk.G + first * stride;
  T* const to = target + first * stride;
  each_decay(
      chunk, count, exponent,
      [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
        const T* const own = G + i * stride;
        return difference(above ? own : anchor, above ? anchor : own, k);
      },
      [=](std::size_t i, std::size_t k, T decay)
          KDA_CHECK_BODY { to[i * stride + k] = to[i * stride + k] + part[i * stride + k] * decay; });
}

/// Rows [from, to) of dq and row, from the columns [first, last); `pairwise`: one row, its own anchor.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void intra_rows(const ChunkBlock<T>& chunk, const IntraBlock<T>& intra,
                                      std::size_t from, std::size_t to, std::size_t first, std::size_t last,
                                      const T* anchor, bool pairwise) {
  if (first >= last) return;
  const IntraFactors<T>& factors = pairwise ? intra.plain : intra.operand;
  const std::size_t columns = (chunk.key_dim + 15) / 16 * 16, at = from * chunk.key_stride;
  scale_rows(chunk, chunk.k, first, last - first, anchor, false, pairwise, intra.exponent, intra.left);
  const auto against = [&](const T* scores, T* target) {
    const Factor<T> factor{scores + from * chunk.score_stride + first, chunk.score_stride, 1};
    product<T, is_fused>(intra_order(chunk, pairwise), to - from, columns, last - first, factor, intra.left,
                         chunk.key_stride, pairwise ? target + at : intra.part, chunk.key_stride,
                         pairwise ? Start::from_result : Start::zero);
    if (!pairwise) add_scaled_rows(chunk, intra.part, from, to - from, anchor, true, intra.exponent, target);
  };
  against(factors.dAqk, intra.dq);
  against(factors.dAkk, intra.row);
}

/// Columns [from, to), from the rows [first, last).
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void intra_columns(const ChunkBlock<T>& chunk, const IntraBlock<T>& intra,
                                         std::size_t from, std::size_t to, std::size_t first,
                                         std::size_t last, const T* anchor, bool pairwise) {
  if (first >= last) return;
  const IntraFactors<T>& factors = pairwise ? intra.plain : intra.operand;
  const std::size_t columns = (chunk.key_dim + 15) / 16 * 16, at = first * chunk.score_stride + from;
  scale_rows(chunk, chunk.q, first, last - first, anchor, true, pairwise, intra.exponent, intra.left);
  scale_rows(chunk, factors.beta_key, first, last - first, anchor, true, pairwise, intra.exponent,
             intra.right);
  T* const target = pairwise ? intra.column + from * chunk.key_stride : intra.part;
  product<T, is_fused>(intra_order(chunk, pairwise), to - from, columns, last - first,
                       Factor<T>{factors.dAqk + at, 1, chunk.score_stride}, intra.left, chunk.key_stride,
                       target, chunk.key_stride, pairwise ? Start::from_result : Start::zero);
  product<T, is_fused>(intra_order(chunk, pairwise), to - from, columns, last - first,
                       Factor<T>{factors.dAkk + at, 1, chunk.score_stride}, intra.right, chunk.key_stride,
                       target, chunk.key_stride, Start::from_result);
  if (!pairwise)
    add_scaled_rows(chunk, intra.part, from, to - from, anchor, false, intra.exponent, intra.column);
}

/// One exponential for each (i, j, k) of rows and columns [from, to); `late`: masked afterwards, so that
/// entries above the diagonal are computed too.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void intra_pairwise(const ChunkBlock<T>& chunk, const IntraBlock<T>& intra,
                                          std::size_t from, std::size_t to, bool late) {
  for (std::size_t i = from; i < to; ++i) {
    const T* const own = chunk.G + i * chunk.key_stride;
    intra_rows<T, is_fused>(chunk, intra, i, i + 1, from, late ? to : i + 1, own, true);
    intra_columns<T, is_fused>(chunk, intra, i, i + 1, late ? from : i, to, own, true);
  }
}

/// dq, row and column, which are zero before.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void intra_gradients(const ChunkBlock<T>& chunk, const IntraBlock<T>& intra) {
  const std::size_t n = chunk.rows, stride = chunk.key_stride;
  if (is_pairwise(chunk.decay))
    return intra_pairwise<T, is_fused>(chunk, intra, 0, n, chunk.decay == DecayForm::pair_late);
  for (std::size_t from = 0; from < n; from += chunk.anchor_rows) {
    const std::size_t to = from + chunk.anchor_rows < n ? from + chunk.anchor_rows : n;
    const T *const first = chunk.G + from * stride, *const last = chunk.G + (to - 1) * stride;
    const T* const before = from == 0 ? nullptr : first - stride;
    const T* const anchor = chunk.decay == DecayForm::factored ? before : first;
    intra_rows<T, is_fused>(chunk, intra, from, to, 0, from, anchor, false);
    intra_columns<T, is_fused>(chunk, intra, from, to, to, n, last, false);
    if (chunk.decay == DecayForm::anchor_pair) {
      intra_pairwise<T, is_fused>(chunk, intra, from, to, false);
      continue;
    }
    const T* diagonal = anchor;
    if (chunk.decay == DecayForm::anchor_mid) {
      const std::size_t half = chunk.anchor_rows / 2;
      diagonal = first + (half < to - from ? half : to - from - 1) * stride;
    }
    intra_rows<T, is_fused>(chunk, intra, from, to, from, to, diagonal, false);
    intra_columns<T, is_fused>(chunk, intra, from, to, from, to, diagonal, false);
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
