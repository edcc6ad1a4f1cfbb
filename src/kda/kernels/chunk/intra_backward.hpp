// The part of the gradients that stays within a chunk: through exp(G_i - G_j) in Aqk and in L (B4 of
// docs/kda.md, "Chunk backward"), in the decay forms of the forward pass.
//
// Rows that share an anchor a are summed against columns scaled by exp(a - G_j) and then scaled by exp(G_i -
// a); columns against rows scaled by exp(G_i - a). Pairwise forms are the same with every row, or column,
// its own anchor.
#pragma once

#include "kda/kernels/chunk/scores.hpp"
#include "kda/kernels/sums/sums_of_rows.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// Whether the order is that of Triton's kernels (docs/arithmetic.md, "Triton, backwards").
template <class T>
KDA_CHECK_THREAD bool sums_as_triton(const ChunkBlock<T>& chunk) {
#ifdef __CUDACC__
  return false;  // what no kernel of a GPU is asked for is not compiled there
#else
  return chunk.operations.reduction.kind == ReductionKind::triton;
#endif
}

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

/// Under ReductionKind::lanes and split a sum that no tensor core forms is that of these lanes: who has it in
/// gpu-chunk on tensor cores backwards (docs/arithmetic.md, "reduction").
KDA_CHECK_THREAD SumOrder by_lanes(SumOrder order, const RowLayout& layout) {
  if (is_by_lanes(order.reduction)) order.layout = layout;
  return order;
}
namespace lanes_of {
KDA_CHECK_THREAD RowLayout pairs() { return {1, 1, 1}; }
KDA_CHECK_THREAD RowLayout rows_of_chunk() { return {1, 16, 1}; }
KDA_CHECK_THREAD RowLayout state_products() { return {2, 4, 1}; }
KDA_CHECK_THREAD RowLayout errors() { return {2, 16, 1}; }
KDA_CHECK_THREAD RowLayout keys(std::size_t K) { return {1, 32, K <= 64 ? std::size_t{2} : std::size_t{4}}; }
}  // namespace lanes_of

/// Pairwise sums are not for tensor cores.
template <class T>
KDA_CHECK_THREAD SumOrder intra_order(const ChunkBlock<T>& chunk, bool pairwise) {
  if (pairwise)
    return by_lanes({chunk.operations.reduction, chunk.operations.is_fused, Adder::thread},
                    lanes_of::pairs());
  return score_order(chunk, chunk.casts.score_operands);
}

/// A product within a chunk. Where scores take the even ones of 16 terms first, so does this.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void intra_product(const ChunkBlock<T>& chunk, bool pairwise, std::size_t rows,
                                         std::size_t columns, std::size_t depth, Factor<T> a, const T* right,
                                         T* result, Start start) {
  const SumOrder order = intra_order(chunk, pairwise);
  const std::size_t stride = chunk.key_stride;
  if (!chunk.operations.interleaves_scores)
    return product<T, is_fused>(order, rows, columns, depth, a, right, stride, result, stride, start);
  for (std::size_t first = 0; first < depth; first += 16) {
    const std::size_t end = first + 16 < depth ? first + 16 : depth;
    for (std::size_t d = first; d < first + 2; ++d)
      product<T, is_fused>(order, rows, columns, (end - d + 1) / 2,
                           Factor<T>{a.data + d * a.depth_stride, a.row_stride, 2 * a.depth_stride},
                           right + d * stride, 2 * stride, result, stride,
                           d == 0 ? start : Start::from_result);
  }
}

/// target rows [first, first + count) += part exp(...), the other factor of what scale_rows() made. In
/// Triton's order a sum that starts here is the product, and what is added later is fused.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void add_scaled_rows(const ChunkBlock<T>& chunk, const T* part, std::size_t first,
                                           std::size_t count, const T* anchor, bool above, Start start,
                                           T* exponent, T* target) {
  const std::size_t stride = chunk.key_stride;
  const T* const G = chunk.G + first * stride;
  T* const to = target + first * stride;
  const auto to_anchor = [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
    const T* const own = G + i * stride;
    return difference(above ? own : anchor, above ? anchor : own, k);
  };
  if (!sums_as_triton(chunk))
    return each_decay(chunk, count, exponent, to_anchor,
                      [=](std::size_t i, std::size_t k, T decay) KDA_CHECK_BODY {
                        to[i * stride + k] = to[i * stride + k] + part[i * stride + k] * decay;
                      });
  each_decay(chunk, count, exponent, to_anchor, [=](std::size_t i, std::size_t k, T decay) KDA_CHECK_BODY {
    const std::size_t e = i * stride + k;
    to[e] = start == Start::zero ? part[e] * decay : scalar_multiply_add<is_fused>(part[e], decay, to[e]);
  });
}

/// Rows [from, to) of dq and row, from the columns [first, last); `pairwise`: one row, its own anchor.
/// `start`: whether these are the first.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void intra_rows(const ChunkBlock<T>& chunk, const IntraBlock<T>& intra,
                                      std::size_t from, std::size_t to, std::size_t first, std::size_t last,
                                      const T* anchor, bool pairwise, Start start = Start::from_result) {
  if (first >= last) return;
  const IntraFactors<T>& factors = pairwise ? intra.plain : intra.operand;
  const std::size_t columns = (chunk.key_dim + 15) / 16 * 16, at = from * chunk.key_stride;
  scale_rows(chunk, chunk.k, first, last - first, anchor, false, pairwise, intra.exponent, intra.left);
  const auto against = [&](const T* scores, T* target) {
    const Factor<T> factor{scores + from * chunk.score_stride + first, chunk.score_stride, 1};
    intra_product<T, is_fused>(chunk, pairwise, to - from, columns, last - first, factor, intra.left,
                               pairwise ? target + at : intra.part,
                               pairwise ? Start::from_result : Start::zero);
    if (!pairwise)
      add_scaled_rows<T, is_fused>(chunk, intra.part, from, to - from, anchor, true, start, intra.exponent,
                                   target);
  };
  against(factors.dAqk, intra.dq);
  against(factors.dAkk, intra.row);
}

/// Columns [from, to), from the rows [first, last). In Triton's order a block of rows after the other takes
/// both products; on the diagonal, where sums are added to others, the two are scaled apart.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void intra_columns(const ChunkBlock<T>& chunk, const IntraBlock<T>& intra,
                                         std::size_t from, std::size_t to, std::size_t first,
                                         std::size_t last, const T* anchor, bool pairwise,
                                         Start start = Start::from_result) {
  if (first >= last) return;
  const IntraFactors<T>& factors = pairwise ? intra.plain : intra.operand;
  const std::size_t columns = (chunk.key_dim + 15) / 16 * 16;
  scale_rows(chunk, chunk.q, first, last - first, anchor, true, pairwise, intra.exponent, intra.left);
  scale_rows(chunk, factors.beta_key, first, last - first, anchor, true, pairwise, intra.exponent,
             intra.right);
  T* const target = pairwise ? intra.column + from * chunk.key_stride : intra.part;
  const auto add = [&](const T* scores, const T* rows, std::size_t row, std::size_t count, Start from_what) {
    const std::size_t at = row * chunk.score_stride + from;
    intra_product<T, is_fused>(chunk, pairwise, to - from, columns, count,
                               Factor<T>{scores + at, 1, chunk.score_stride},
                               rows + (row - first) * chunk.key_stride, target, from_what);
  };
  const auto put = [&] {
    if (!pairwise)
      add_scaled_rows<T, is_fused>(chunk, intra.part, from, to - from, anchor, false, start, intra.exponent,
                                   intra.column);
  };
  const bool by_triton = sums_as_triton(chunk), is_apart = by_triton && start == Start::from_result;
  const std::size_t step = by_triton && !is_apart ? chunk.anchor_rows : last - first;
  for (std::size_t row = first; row < last; row += step) {
    const std::size_t count = row + step < last ? step : last - row;
    add(factors.dAqk, intra.left, row, count, pairwise || row > first ? Start::from_result : Start::zero);
    if (is_apart) put();
    add(factors.dAkk, intra.right, row, count, is_apart ? Start::zero : Start::from_result);
  }
  put();
}

/// Pairs of rows [from, to), row by row and from the first of the others on: (score x) e^..., none of it
/// fused. Pairs of the other side of the diagonal add a zero.
template <class T>
KDA_CHECK_TEAM_CALLED void triton_pairs(const ChunkBlock<T>& chunk, const IntraBlock<T>& intra,
                                        std::size_t from, std::size_t to) {
  const std::size_t stride = chunk.key_stride, K = chunk.key_dim, score_stride = chunk.score_stride;
  const T *const G = chunk.G, *const q = chunk.q, *const key = chunk.k,
                 *const beta_key = intra.plain.beta_key;
  const auto with_zero = [=](T* sum) KDA_CHECK_BODY {
    each(K, [=](std::size_t k) KDA_CHECK_BODY { sum[k] = sum[k] + T(0); });
  };
  for (std::size_t i = from; i < to; ++i) {
    T *const of_q = intra.dq + i * stride, *const of_row = intra.row + i * stride,
             *const of_column = intra.column + i * stride;
    const T* const own = G + i * stride;
    const T *const dAqk = intra.plain.dAqk, *const dAkk = intra.plain.dAkk;
    each_decay(
        chunk, i + 1 - from, intra.exponent,
        [=](std::size_t j, std::size_t k) KDA_CHECK_BODY { return own[k] - G[(from + j) * stride + k]; },
        [=](std::size_t j, std::size_t k, T decay) KDA_CHECK_BODY {
          const std::size_t at = i * score_stride + from + j, e = (from + j) * stride + k;
          of_q[k] = of_q[k] + dAqk[at] * key[e] * decay;
          of_row[k] = of_row[k] + dAkk[at] * key[e] * decay;
        });
    if (i + 1 < to) with_zero(of_q), with_zero(of_row);
    if (i > from) with_zero(of_column);
    each_decay(
        chunk, to - i, intra.exponent,
        [=](std::size_t j, std::size_t k) KDA_CHECK_BODY { return G[(i + j) * stride + k] - own[k]; },
        [=](std::size_t j, std::size_t k, T decay) KDA_CHECK_BODY {
          const std::size_t at = (i + j) * score_stride + i, e = (i + j) * stride + k;
          of_column[k] = of_column[k] + dAqk[at] * q[e] * decay;
          of_column[k] = of_column[k] + dAkk[at] * beta_key[e] * decay;
        });
  }
}

/// One exponential for each (i, j, k) of rows and columns [from, to); `late`: masked afterwards, so that
/// entries above the diagonal are computed too.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void intra_pairwise(const ChunkBlock<T>& chunk, const IntraBlock<T>& intra,
                                          std::size_t from, std::size_t to, bool late) {
  if (sums_as_triton(chunk)) return triton_pairs(chunk, intra, from, to);
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
    const T* const anchor = starts_before(chunk.decay) ? before : first;
    intra_rows<T, is_fused>(chunk, intra, from, to, 0, from, anchor, false, Start::zero);
    intra_columns<T, is_fused>(chunk, intra, from, to, to, n, last, false, Start::zero);
    if (chunk.decay == DecayForm::anchor_pair) {
      intra_pairwise<T, is_fused>(chunk, intra, from, to, false);
      continue;
    }
    const T* diagonal = anchor;
    if (chunk.decay == DecayForm::anchor_mid) {
      const std::size_t half = chunk.anchor_rows / 2;
      diagonal = first + (half < to - from ? half : to - from - 1) * stride;
    } else if (chunk.bounds != nullptr) {
      diagonal = chunk.bounds + from / chunk.anchor_rows * stride;
    }
    intra_rows<T, is_fused>(chunk, intra, from, to, from, to, diagonal, false);
    intra_columns<T, is_fused>(chunk, intra, from, to, from, to, diagonal, false);
  }
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
