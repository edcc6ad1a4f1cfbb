// What both ways backwards through a chunk share, that of w (chunk_backward.hpp) and that of the residual
// (residual_backward.hpp).
#pragma once

#include "kda/kernels/chunk/chunk.hpp"
#include "kda/kernels/chunk/intra_backward.hpp"
#include "kda/kernels/chunk/triton_backward.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// to[column][row] = from[row][column]; columns of the result up to `stride` are zero.
template <class T>
KDA_CHECK_TEAM_CALLED void transpose(const T* from, std::size_t from_stride, std::size_t rows,
                                     std::size_t columns, T* to, std::size_t stride) {
  each(columns, stride, [=](std::size_t column, std::size_t row) KDA_CHECK_BODY {
    to[column * stride + row] = row < rows ? from[row * from_stride + column] : T(0);
  });
}

template <class T>
KDA_CHECK_TEAM_CALLED void rounded_copy(Rounding rounding, const T* from, std::size_t count, T* to) {
  each(count, [=](std::size_t i) KDA_CHECK_BODY { to[i] = from[i]; });
  round_array(rounding, to, count);
}

/// A^T B for a lower triangular A, 16 rows at a time: row i of A^T has nothing before column i.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void transposed_lower_product(const ChunkBlock<T>& chunk, const SumOrder& order,
                                                    const T* a, const T* right, std::size_t columns,
                                                    std::size_t stride, T* result) {
  for (std::size_t from = 0; from < chunk.rows; from += 16) {
    const std::size_t to = from + 16 < chunk.rows ? from + 16 : chunk.rows;
    product<T, is_fused>(order, to - from, columns, chunk.rows - from,
                         Factor<T>{a + from * chunk.score_stride + from, 1, chunk.score_stride},
                         right + from * stride, stride, result + from * stride, stride, Start::zero);
  }
}

/// Sums over columns: sum_i a_i b_i of each column, rows from the first down.
template <class T>
KDA_CHECK_TEAM_CALLED void column_sums(const SumOrder& order, const T* a, const T* b, std::size_t rows,
                                       std::size_t columns, std::size_t stride, T* sums) {
  using Pack = Sixteen<T>;
  each_pack<T>(columns, [=, &order](std::size_t column) KDA_CHECK_BODY {
    ordered_sum(order, rows, PairedRows<T>{a + column, b + column, stride}, Pack::zero(), false)
        .store(sums + column);
  });
}

/// The pieces of scratch memory and the constants that the steps share.
template <class T>
struct ChunkBackwardWork {
  std::size_t n, K, V, k_columns, v_columns, n_columns;
  T *d_o, *v, *value_scratch, *v_transposed;                                   ///< by value
  T *k_decayed, *k_scratch, *beta_key, *dkb, *dq_intra, *row, *column, *part;  ///< by key
  T *A_transposed, *dA, *square, *dAqk;                                        ///< square
  T *h_transposed, *dh_transposed;                                             ///< [value_dim][key_stride]
  T *decay, *last_row, *exponent, *state_products;                             ///< [key_stride]

  KDA_CHECK_TEAM ChunkBackwardWork(const ChunkBlock<T>& chunk, T* scratch)
      : n(chunk.rows),
        K(chunk.key_dim),
        V(chunk.value_dim),
        k_columns((K + 15) / 16 * 16),
        v_columns((V + 15) / 16 * 16),
        n_columns((n + 15) / 16 * 16) {
    const ChunkBackwardScratch sizes(n, K, V, chunk.key_stride, chunk.value_stride, chunk.score_stride);
    const auto take = [&scratch](std::size_t count) KDA_CHECK_BODY {
      T* const memory = scratch;
      scratch += count;
      return memory;
    };
    d_o = take(sizes.by_value), v = take(sizes.by_value);
    value_scratch = take(sizes.by_value), v_transposed = take(sizes.by_value);
    k_decayed = take(sizes.by_key), k_scratch = take(sizes.by_key), dkb = take(sizes.by_key);
    dq_intra = take(sizes.by_key), row = take(sizes.by_key), column = take(sizes.by_key);
    part = take(sizes.by_key), beta_key = take(sizes.by_key);
    A_transposed = take(sizes.square), dA = take(sizes.square), square = take(sizes.square);
    dAqk = take(sizes.square);
    h_transposed = take(sizes.state), dh_transposed = take(sizes.state);
    decay = take(sizes.line), last_row = take(sizes.line), exponent = take(sizes.line);
    state_products = take(sizes.line);
  }
};

/// B1: dv_local = Aqk^T do. Leaves do as an operand.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void local_value_gradients(const ChunkBlock<T>& chunk,
                                                 const ChunkBackwardBlock<T>& block,
                                                 const ChunkBackwardWork<T>& work) {
  const std::size_t count = work.n * chunk.value_stride;
  rounded_copy(chunk.casts.operands, block.output_gradient, count, work.d_o);
  transposed_lower_product<T, is_fused>(chunk, product_order(chunk, chunk.casts.operands),
                                        used(chunk.given.Aqk, chunk.Aqk), work.d_o, work.v_columns,
                                        chunk.value_stride, block.dv_local);
  round_array(chunk.casts.dv_local, block.dv_local, count);
}

/// B1: dAqk = scale tril(do v_new^T).
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void score_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                                           const ChunkBackwardWork<T>& work) {
  const SumOrder order = product_order(chunk, chunk.casts.operands);
  const std::size_t n = work.n, v_stride = chunk.value_stride, stride = chunk.score_stride;
  transpose(used(chunk.given.v_new, chunk.v_new), v_stride, n, work.V, work.v_transposed, stride);
  product<T, is_fused>(order, n, work.n_columns, work.V, Factor<T>{work.d_o, v_stride, 1}, work.v_transposed,
                       stride, block.dAqk, stride, Start::zero);
  T* const dAqk = block.dAqk;
  each(n, stride, [=, scale = chunk.scale](std::size_t i, std::size_t j) KDA_CHECK_BODY {
    dAqk[i * stride + j] = j <= i ? scale * dAqk[i * stride + j] : T(0);
  });
}

/// sum_v h dh of each key, which enters dG of the last row. No product of matrices: factors that are in tf32
/// for those, as tensor cores cut them, are whole here.
template <class T>
KDA_CHECK_TEAM_CALLED void state_products(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                                          const ChunkBackwardWork<T>& work) {
  const std::size_t stride = chunk.value_stride, V = work.V;
  const Rounding rounding = chunk.casts.state_product;
  const auto is_cut = [](Rounding operand) { return operand == Rounding::tf32; };
  const T* const h = used(chunk.given.h, is_cut(chunk.casts.state) ? block.entering_state : chunk.h);
  const T* const dh = used(block.given.dh, is_cut(chunk.casts.dh) ? block.state_gradient : block.dh);
  if (sums_as_triton(chunk)) return triton_state_products(chunk, block.layouts, h, dh, work.state_products);
  each(work.K, [&](std::size_t k) KDA_CHECK_BODY {
    const T *const a = h + k * stride, *const b = dh + k * stride;
    T sum = 0;
    if (rounding == Rounding::none)
      dot_of_row(by_lanes(sums_of_rows(chunk.operations), lanes_of::state_products()), a, b, V, &sum);
    else
      for (std::size_t v = 0; v < V; ++v) sum = sum + rounded(rounding, a[v] * b[v]);
    work.state_products[k] = rounded(rounding, sum);
  });
}

/// B2: dh, the gradient of the leaving state as an operand.
template <class T>
KDA_CHECK_TEAM_CALLED void read_state_gradient(const ChunkBlock<T>& chunk,
                                               const ChunkBackwardBlock<T>& block) {
  const std::size_t count = chunk.key_dim * chunk.value_stride;
  rounded_copy(chunk.casts.dh, block.state_gradient, count, block.dh);
  if (block.given.dh == nullptr) return;
  each(count, [&](std::size_t e) KDA_CHECK_BODY { block.state_gradient[e] = block.given.dh[e]; });
}

/// B3: dAkk = -stril(A^T dA A^T), dA being zero from the diagonal on.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void score_gradients_of_inverse(const ChunkBlock<T>& chunk,
                                                      const ChunkBackwardBlock<T>& block,
                                                      const ChunkBackwardWork<T>& work, const T* A) {
  const std::size_t n = work.n, stride = chunk.score_stride;
  T *const square = work.square, *const dAkk = block.dAkk;
  round_array(chunk.casts.dA, work.dA, n * stride);
  transpose(A, stride, n, n, work.A_transposed, stride);
  each(n * stride, [=](std::size_t e) KDA_CHECK_BODY { square[e] = 0; });
  const SumOrder order = product_order(chunk, chunk.casts.dA);
  product<T, is_fused>(order, n, work.n_columns, n, Factor<T>{work.dA, stride, 1}, work.A_transposed, stride,
                       square, stride, Start::zero);
  round_array(chunk.casts.dA, square, n * stride);
  transposed_lower_product<T, is_fused>(chunk, order, A, square, work.n_columns, stride, dAkk);
  each(n, stride, [=, by_triton = sums_as_triton(chunk)](std::size_t i, std::size_t j) KDA_CHECK_BODY {
    T& element = dAkk[i * stride + j];
    element = j >= i ? T(0) : by_triton ? T(0) - element : -element;
  });
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
