// The chunk form backwards where reduction=triton has an order of its own: sums by Triton's layouts, block by
// block, and what its compiler makes a fma of (docs/arithmetic.md, "Triton, backwards").
#pragma once

#include "kda/kernels/chunk/scores.hpp"
#include "kda/kernels/chunk_backward_block.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// Up to as many channels dv starts from what stays within the chunk; beyond, that is added to the sum.
inline constexpr std::size_t most_chained_channels = 64;

/// PyTorch's sum of a few numbers: four running sums, number after number.
template <class T>
struct FourSums {
  T sums[4] = {};
  KDA_CHECK_THREAD void add(std::size_t i, T x) { sums[i % 4] = sums[i % 4] + x; }
  KDA_CHECK_THREAD T total() const { return ((sums[0] + sums[1]) + sums[2]) + sums[3]; }
};

/// Columns [first, first + width) of up to 16 rows, zeros from `end` on.
template <class T>
struct BlockOfColumns {
  PairedColumns<T> pairs;
  std::size_t first, end;

  KDA_CHECK_THREAD Factors<Sixteen<T>> operator()(std::size_t d) const {
    if (first + d < end) return pairs(first + d);
    return {Sixteen<T>::zero(), Sixteen<T>::zero()};
  }
};

/// use(row, sum over the columns [first, first + width) of a b): rows of `columns` elements.
template <class T, class Use>
KDA_CHECK_TEAM void sum_blocks(const RowLayout& layout, bool is_fused, const Rows<T>& a, const Rows<T>& b,
                               std::size_t rows, std::size_t columns, std::size_t first, std::size_t width,
                               Use use) {
  constexpr std::size_t together = Sixteen<T>::count;
  const std::size_t end = first + width < columns ? first + width : columns;
  for (std::size_t from = 0; from < rows; from += together) {
    const std::size_t count = rows - from < together ? rows - from : together;
    const Rows<T> left{a.first + from * a.stride, a.stride}, right{b.first + from * b.stride, b.stride};
    T sums[together];
    triton_sum<Sixteen<T>>(is_fused, layout, false, width,
                           BlockOfColumns<T>{{left, right, count}, first, end})
        .store(sums);
    for (std::size_t row = 0; row < count; ++row) use(from + row, sums[row]);
  }
}

/// a b + c of numbers of a narrow format, in that format.
template <class T>
KDA_CHECK_THREAD T narrow_multiply_add(bool is_fused, Rounding rounding, T a, T b, T c) {
  if (!is_fused) return rounded(rounding, rounded(rounding, a * b) + c);
  const double exact = numeric::round_to_odd(
      numeric::two_sum(static_cast<double>(a) * static_cast<double>(b), static_cast<double>(c)));
  if (rounding == Rounding::bf16)
    return static_cast<T>(numeric::widen_to_float(numeric::round_to<numeric::Bfloat16>(exact)));
  if (rounding == Rounding::fp16)
    return static_cast<T>(numeric::widen_to_float(numeric::round_to<numeric::Float16>(exact)));
  return rounded(rounding, static_cast<T>(exact));
}

/// triton_sum() of products that are added up in a narrow format, over `depth` elements, zeros from `end` on.
/// `is_packed`: a thread adds two elements at once; of each pair but the first the odd one's product leaves
/// its pair, rounded.
template <class T>
KDA_CHECK_THREAD_CALLED T narrow_triton_sum(bool is_fused, Rounding rounding, const RowLayout& layout,
                                            bool is_packed, const T* a, const T* b, std::size_t depth,
                                            std::size_t end) {
  T sums[most_sums];
  const std::size_t threads = layout.lanes * layout.warps, together = threads * layout.registers;
  const auto left = [&](std::size_t d) KDA_CHECK_BODY { return d < end ? a[d] : T(0); };
  const auto right = [&](std::size_t d) KDA_CHECK_BODY { return d < end ? b[d] : T(0); };
  const auto product = [&](std::size_t d) KDA_CHECK_BODY { return rounded(rounding, left(d) * right(d)); };
  const bool has_one = layout.registers == 1 && depth <= together;
  for (std::size_t thread = 0; thread < threads; ++thread) {
    const auto element = [&](std::size_t i) KDA_CHECK_BODY {
      return i / layout.registers * together + thread * layout.registers + i % layout.registers;
    };
    if (has_one) {
      sums[thread] = product(thread);
      continue;
    }
    T sum = narrow_multiply_add(is_fused, rounding, left(element(0)), right(element(0)), product(element(1)));
    for (std::size_t i = 2; element(i) < depth; ++i) {
      const std::size_t d = element(i);
      sum = is_packed && i % 2 == 1 ? rounded(rounding, sum + product(d))
                                    : narrow_multiply_add(is_fused, rounding, left(d), right(d), sum);
    }
    sums[thread] = sum;
  }
  for (std::size_t half = layout.lanes / 2; half > 0; half /= 2)
    for (std::size_t warp = 0; warp < layout.warps; ++warp)
      for (std::size_t lane = 0; lane < half; ++lane) {
        const std::size_t own = warp * layout.lanes + lane;
        sums[own] = has_one && half == layout.lanes / 2
                        ? narrow_multiply_add(is_fused, rounding, left(own), right(own), sums[own + half])
                        : rounded(rounding, sums[own] + sums[own + half]);
      }
  for (std::size_t half = layout.warps / 2; half > 0; half /= 2)
    for (std::size_t warp = 0; warp < half; ++warp)
      sums[warp * layout.lanes] =
          rounded(rounding, sums[warp * layout.lanes] + sums[(warp + half) * layout.lanes]);
  return sums[0];
}

/// sum_v h dh of each key, block by block, in the format that `state_product` is rounded to.
template <class T>
KDA_CHECK_TEAM_CALLED void triton_state_products(const ChunkBlock<T>& chunk, const GradientLayouts& layouts,
                                                 const T* h, const T* dh, T* sums) {
  const std::size_t stride = chunk.value_stride, V = chunk.value_dim, K = chunk.key_dim;
  const bool is_fused = chunk.operations.is_fused;
  const Rounding rounding = chunk.casts.state_product;
  each(K, [=](std::size_t k) KDA_CHECK_BODY { sums[k] = 0; });
  for (std::size_t first = 0; first < V; first += layouts.values) {
    if (rounding == Rounding::none) {
      sum_blocks(layouts.states, is_fused, Rows<T>{h, stride}, Rows<T>{dh, stride}, K, V, first,
                 layouts.values, [=](std::size_t k, T sum) KDA_CHECK_BODY { sums[k] = sums[k] + sum; });
      continue;
    }
    each(K, [&](std::size_t k) KDA_CHECK_BODY {
      const std::size_t at = k * stride + first, left = V - first;
      sums[k] =
          sums[k] + narrow_triton_sum(is_fused, rounding, layouts.states, layouts.packs_states, h + at,
                                      dh + at, layouts.values, left < layouts.values ? left : layouts.values);
    });
  }
}

/// dbeta through the inverse: blocks of dvb v, then of dkb k e^G.
template <class T>
KDA_CHECK_TEAM_CALLED void triton_strengths(const ChunkBlock<T>& chunk, const GradientLayouts& layouts,
                                            const T* dvb, const T* dkb, const T* k_decayed, T* dbeta) {
  const auto add_blocks = [&](const RowLayout& layout, const T* a, const T* b, std::size_t stride,
                              std::size_t columns, std::size_t width) KDA_CHECK_BODY {
    for (std::size_t first = 0; first < columns; first += width)
      sum_blocks(layout, chunk.operations.is_fused, Rows<T>{a, stride}, Rows<T>{b, stride}, chunk.rows,
                 columns, first, width,
                 [=](std::size_t i, T sum) KDA_CHECK_BODY { dbeta[i] = dbeta[i] + sum; });
  };
  each(chunk.rows, [=](std::size_t i) KDA_CHECK_BODY { dbeta[i] = 0; });
  add_blocks(layouts.value_rows, dvb, chunk.v, chunk.value_stride, chunk.value_dim, layouts.values);
  add_blocks(layouts.key_rows, dkb, k_decayed, chunk.key_stride, chunk.key_dim, layouts.keys);
}

/// Rows of a tensor core's tiles, 16 for a warp, a thread having two of them, eight apart; zeros from `end`.
template <class T>
struct RowsOfTiles {
  PairedRows<T> rows;
  std::size_t end;

  KDA_CHECK_THREAD Factors<Sixteen<T>> operator()(std::size_t d) const {
    const std::size_t row = d / 16 * 16 + d % 2 * 8 + d % 16 / 2;
    if (row < end) return rows(row);
    return {Sixteen<T>::zero(), Sixteen<T>::zero()};
  }
};

template <class T>
struct GateGradientFactors {
  const T *dkb, *k_decayed, *state_products;
  T *decay, *last_row, *exponent;  ///< [key_stride] scratch
};

/// B3: dG through the states, and the rest of dk.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void triton_gate_gradients(const ChunkBlock<T>& chunk,
                                                 const ChunkBackwardBlock<T>& block,
                                                 const GateGradientFactors<T>& factors) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, stride = chunk.key_stride;
  const GradientLayouts& layouts = block.layouts;
  T *const last_row = factors.last_row, *const decay = factors.decay, *const dG = block.dG,
           *const dk = block.dk;
  const T *const q = chunk.q, *const key = chunk.k, *const G = chunk.G, *const beta = chunk.beta,
                 *const dq = block.dq, *const dkb = factors.dkb, *const k_decayed = factors.k_decayed,
                 *const products = factors.state_products;
  each_pack<T>((K + 15) / 16 * 16, [=, &layouts](std::size_t column) KDA_CHECK_BODY {
    triton_sum<Sixteen<T>>(is_fused, RowLayout{2, 8, layouts.row_warps}, false, layouts.chunk_rows,
                           RowsOfTiles<T>{{key + column, dk + column, stride}, n})
        .store(last_row + column);
  });
  decays_of(chunk.operations, G + (n - 1) * stride, decay, K);
  each(K, [=, fuses = layouts.fuses_states](std::size_t k) KDA_CHECK_BODY {
    last_row[k] = fuses ? scalar_multiply_add<is_fused>(products[k], decay[k], last_row[k])
                        : products[k] * decay[k] + last_row[k];
  });
  each(n, K, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
    const std::size_t e = i * stride + k;
    const T of_key = key[e] * dk[e], through_w = k_decayed[e] * dkb[e];
    const T through_states = scalar_multiply_add<is_fused>(q[e], dq[e], T(0) - of_key);
    const T is_last = i + 1 == n ? T(1) : T(0),
            with_last = scalar_multiply_add<is_fused>(is_last, last_row[k], through_states);
    dG[e] = scalar_multiply_add<is_fused>(through_w, beta[i], with_last);
  });
  each_decay(
      chunk, n, factors.exponent,
      [=](std::size_t i, std::size_t k) KDA_CHECK_BODY { return G[i * stride + k]; },
      [=](std::size_t i, std::size_t k, T of_row) KDA_CHECK_BODY {
        const std::size_t e = i * stride + k;
        dk[e] = scalar_multiply_add<is_fused>(dkb[e], of_row * beta[i], dk[e]);
      });
}

/// B4: what stays within the chunk, added to dq, dk, dbeta and dG.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void triton_add_intra_gradients(const ChunkBlock<T>& chunk,
                                                      const ChunkBackwardBlock<T>& block, const T* dq_intra,
                                                      const T* rows, const T* columns) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, stride = chunk.key_stride;
  const bool fuses_strengths = is_fused && chunk.decay != DecayForm::anchor_pair && !is_pairwise(chunk.decay);
  T *const dq = block.dq, *const dk = block.dk, *const dG = block.dG, *const dbeta = block.dbeta;
  const std::size_t channels = block.layouts.channels;
  for (std::size_t from = 0; from < n; from += Sixteen<T>::count) {
    const std::size_t count = n - from < Sixteen<T>::count ? n - from : Sixteen<T>::count;
    FourSums<T> parts[Sixteen<T>::count];
    for (std::size_t first = 0; first < K; first += channels)
      sum_blocks(block.layouts.pair_rows, fuses_strengths, Rows<T>{rows + from * stride, stride},
                 Rows<T>{chunk.k + from * stride, stride}, count, K, first, channels,
                 [&](std::size_t i, T sum) KDA_CHECK_BODY { parts[i].add(first / channels, sum); });
    for (std::size_t i = 0; i < count; ++i) dbeta[from + i] = parts[i].total() + dbeta[from + i];
  }
  const T *const q = chunk.q, *const key = chunk.k, *const beta = chunk.beta;
  each(n, K, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
    const std::size_t e = i * stride + k;
    const T by_row = rows[e] * beta[i], by_column = columns[e];
    dq[e] = dq_intra[e] + dq[e];
    dk[e] = (by_row + dk[e]) + by_column;
    dG[e] = q[e] * dq_intra[e] + scalar_multiply_add<is_fused>(by_row - by_column, key[e], dG[e]);
  });
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
