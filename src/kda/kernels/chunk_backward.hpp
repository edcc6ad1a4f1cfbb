// The staged chunk form backwards, B1 to B4 of docs/kda.md, "Chunk backward", with the cast points of FLA's
// kernels where the arithmetic asks for them. The forward arrays of the chunk are read as they were left.
#pragma once

#include "kda/kernels/chunk.hpp"
#include "kda/kernels/intra_backward.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// to[column][row] = from[row][column]; columns of the result up to `stride` are zero.
template <class T>
void transpose(const T* from, std::size_t from_stride, std::size_t rows, std::size_t columns, T* to,
               std::size_t stride) {
  for (std::size_t column = 0; column < columns; ++column) {
    for (std::size_t row = 0; row < rows; ++row) to[column * stride + row] = from[row * from_stride + column];
    for (std::size_t row = rows; row < stride; ++row) to[column * stride + row] = 0;
  }
}

template <class T>
void rounded_copy(Rounding rounding, const T* from, std::size_t count, T* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
  round_array(rounding, to, count);
}

/// A^T B for a lower triangular A, 16 rows at a time: row i of A^T has nothing before column i.
template <class T, bool is_fused>
void transposed_lower_product(const ChunkBlock<T>& chunk, const SumOrder& order, const T* a, const T* right,
                              std::size_t columns, std::size_t stride, T* result) {
  for (std::size_t from = 0; from < chunk.rows; from += 16) {
    const std::size_t to = from + 16 < chunk.rows ? from + 16 : chunk.rows;
    product<T, is_fused>(order, to - from, columns, chunk.rows - from,
                         Factor<T>{a + from * chunk.score_stride + from, 1, chunk.score_stride},
                         right + from * stride, stride, result + from * stride, stride, Start::zero);
  }
}

/// Sums over columns 16 at a time: sum_i a_i b_i of each column, rows from the first down.
template <class T>
void column_sums(const SumOrder& order, const T* a, const T* b, std::size_t rows, std::size_t columns,
                 std::size_t stride, T* sums) {
  using Pack = Sixteen<T>;
  for (std::size_t column = 0; column < columns; column += 16)
    ordered_sum(order, rows, PairedRows<T>{a + column, b + column, stride}, Pack::zero(), false)
        .store(sums + column);
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

  ChunkBackwardWork(const ChunkBlock<T>& chunk, T* scratch)
      : n(chunk.rows),
        K(chunk.key_dim),
        V(chunk.value_dim),
        k_columns((K + 15) / 16 * 16),
        v_columns((V + 15) / 16 * 16),
        n_columns((n + 15) / 16 * 16) {
    const ChunkBackwardScratch sizes(n, K, V, chunk.key_stride, chunk.value_stride, chunk.score_stride);
    const auto take = [&scratch](std::size_t count) __attribute__((always_inline)) {
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

/// B1: dAqk = scale tril(do v_new^T); dv_local = Aqk^T do.
template <class T, bool is_fused>
void score_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                     const ChunkBackwardWork<T>& work) {
  const SumOrder order = product_order(chunk, chunk.casts.operands);
  const std::size_t n = work.n, v_stride = chunk.value_stride, stride = chunk.score_stride;
  rounded_copy(chunk.casts.operands, block.output_gradient, n * v_stride, work.d_o);
  transpose(used(chunk.given.v_new, chunk.v_new), v_stride, n, work.V, work.v_transposed, stride);
  product<T, is_fused>(order, n, work.n_columns, work.V, Factor<T>{work.d_o, v_stride, 1}, work.v_transposed,
                       stride, block.dAqk, stride, Start::zero);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < stride; ++j)
      block.dAqk[i * stride + j] = j <= i ? chunk.scale * block.dAqk[i * stride + j] : T(0);
  transposed_lower_product<T, is_fused>(chunk, order, used(chunk.given.Aqk, chunk.Aqk), work.d_o,
                                        work.v_columns, v_stride, block.dv_local);
  round_array(chunk.casts.dv_local, block.dv_local, n * v_stride);
}

/// sum_v h dh of each key, which enters dG of the last row. No product of matrices: factors that are in tf32
/// for those, as tensor cores cut them, are whole here.
template <class T>
void state_products(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                    const ChunkBackwardWork<T>& work) {
  const std::size_t v_stride = chunk.value_stride;
  const Rounding rounding = chunk.casts.state_product;
  const auto is_cut = [](Rounding operand) { return operand == Rounding::tf32; };
  const T* const h = used(chunk.given.h, is_cut(chunk.casts.state) ? block.entering_state : chunk.h);
  const T* const dh = used(block.given.dh, is_cut(chunk.casts.dh) ? block.state_gradient : block.dh);
  for (std::size_t k = 0; k < work.K; ++k) {
    if (rounding == Rounding::none) {
      const std::size_t row = k * v_stride;
      dot_of_row(chunk.operations, h + row, dh + row, work.V, work.state_products + k);
      continue;
    }
    T* const products = work.value_scratch;
    for (std::size_t v = 0; v < work.V; ++v) products[v] = h[k * v_stride + v] * dh[k * v_stride + v];
    round_array(rounding, products, work.V);
    T sum = 0;
    for (std::size_t v = 0; v < work.V; ++v) sum = sum + products[v];
    round_array(rounding, &sum, 1);
    work.state_products[k] = sum;
  }
}

/// B2: dv = dv_local + kg dh; the gradient of the entering state.
template <class T, bool is_fused>
void state_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                     const ChunkBackwardWork<T>& work) {
  const SumOrder order = product_order(chunk, chunk.casts.operands);
  const std::size_t n = work.n, K = work.K, k_stride = chunk.key_stride, v_stride = chunk.value_stride;
  rounded_copy(chunk.casts.dh, block.state_gradient, K * v_stride, block.dh);
  const T* const dh = used(block.given.dh, block.dh);
  if (block.given.dh != nullptr)
    for (std::size_t e = 0; e < K * v_stride; ++e) block.state_gradient[e] = dh[e];
  state_products(chunk, block, work);
  product<T, is_fused>(order, n, work.v_columns, K, Factor<T>{used(chunk.given.kg, chunk.kg), k_stride, 1},
                       dh, v_stride, block.dv, v_stride, Start::zero);
  const T* const local = used(block.given.dv_local, block.dv_local);
  for (std::size_t e = 0; e < n * v_stride; ++e) block.dv[e] = block.dv[e] + local[e];
  round_array(chunk.casts.dv, block.dv, n * v_stride);

  // D = diag(exp(Gn)) dh + scale qg^T do - w^T dv
  T* const decay = work.decay;
  exponential(chunk.operations.exponential, chunk.G + (n - 1) * k_stride, decay, K);
  round_array(chunk.casts.decay, decay, K);
  T *const by_output = work.h_transposed, *const by_value = work.dh_transposed;  // not in use yet
  product<T, is_fused>(order, K, work.v_columns, n, Factor<T>{used(chunk.given.qg, chunk.qg), 1, k_stride},
                       work.d_o, v_stride, by_output, v_stride, Start::zero);
  product<T, is_fused>(order, K, work.v_columns, n, Factor<T>{used(chunk.given.w, chunk.w), 1, k_stride},
                       used(block.given.dv, block.dv), v_stride, by_value, v_stride, Start::zero);
  for (std::size_t k = 0; k < K; ++k)
    for (std::size_t e = k * v_stride; e < k * v_stride + work.v_columns; ++e)
      block.state_gradient[e] = scalar_multiply_add<is_fused>(
          block.state_gradient[e], decay[k],
          scalar_multiply_add<is_fused>(chunk.scale, by_output[e], -by_value[e]));
  round_array(chunk.casts.carry, block.state_gradient, K * v_stride);
}

/// B3: what goes through the states: dq, dk, dw.
template <class T, bool is_fused>
void inter_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                     const ChunkBackwardWork<T>& work) {
  const SumOrder order = product_order(chunk, chunk.casts.operands);
  const std::size_t n = work.n, K = work.K, V = work.V, k_stride = chunk.key_stride,
                    v_stride = chunk.value_stride;
  transpose(used(chunk.given.h, chunk.h), v_stride, K, V, work.h_transposed, k_stride);
  transpose(used(block.given.dh, block.dh), v_stride, K, V, work.dh_transposed, k_stride);
  const auto through = [&](const T* rows, const T* state, T* result) {
    product<T, is_fused>(order, n, work.k_columns, V, Factor<T>{rows, v_stride, 1}, state, k_stride, result,
                         k_stride, Start::zero);
  };
  through(work.d_o, work.h_transposed, block.dq);
  through(used(chunk.given.v_new, chunk.v_new), work.dh_transposed, block.dk);
  through(used(block.given.dv, block.dv), work.h_transposed, block.dw);
  for (std::size_t e = 0; e < n * k_stride; ++e) block.dw[e] = -block.dw[e];
  round_array(chunk.casts.dw, block.dw, n * k_stride);
  const T* const last = chunk.G + (n - 1) * k_stride;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t row = i * k_stride;
    T* const decay = work.decay;
    decay_between(chunk, chunk.G + row, static_cast<const T*>(nullptr), decay);
    for (std::size_t k = 0; k < K; ++k) block.dq[row + k] = chunk.scale * (block.dq[row + k] * decay[k]);
    for (std::size_t k = 0; k < K; ++k) work.k_decayed[row + k] = chunk.k[row + k] * decay[k];
    for (std::size_t k = K; k < k_stride; ++k) work.k_decayed[row + k] = 0;
    if (chunk.tail != nullptr) {
      decay_between(chunk, chunk.tail + row, static_cast<const T*>(nullptr), decay);
    } else {
      decay_between(chunk, last, chunk.G + row, decay);
    }
    for (std::size_t k = 0; k < K; ++k) block.dk[row + k] = block.dk[row + k] * decay[k];
  }
}

/// B3: what goes through the inverse: the gradients of v and beta, dkb, and dAkk = -stril(A^T stril(dA) A^T).
template <class T, bool is_fused>
void inverse_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                       const ChunkBackwardWork<T>& work) {
  const SumOrder order = product_order(chunk, chunk.casts.operands);
  const std::size_t n = work.n, k_stride = chunk.key_stride, v_stride = chunk.value_stride,
                    stride = chunk.score_stride;
  const T* const A = used(chunk.given.Akk_inv, chunk.Akk_inv);
  const T *const dv = used(block.given.dv, block.dv), *const dw = used(block.given.dw, block.dw);

  // dA = (dv v^T + dw (k 2^G)^T) diag(beta)
  rounded_copy(chunk.casts.operands, chunk.v, n * v_stride, work.v);
  transpose(work.v, v_stride, n, work.V, work.v_transposed, stride);
  product<T, is_fused>(order, n, work.n_columns, work.V, Factor<T>{dv, v_stride, 1}, work.v_transposed,
                       stride, work.dA, stride, Start::zero);
  rounded_copy(chunk.casts.operands, work.k_decayed, n * k_stride, work.part);
  T* const k_transposed = work.k_scratch;
  transpose(work.part, k_stride, n, work.K, k_transposed, stride);
  product<T, is_fused>(order, n, work.n_columns, work.K, Factor<T>{dw, k_stride, 1}, k_transposed, stride,
                       work.dA, stride, Start::from_result);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < stride; ++j)
      work.dA[i * stride + j] = j < i ? work.dA[i * stride + j] * chunk.beta[j] : T(0);
  round_array(chunk.casts.dA, work.dA, n * stride);
  transpose(A, stride, n, n, work.A_transposed, stride);
  for (std::size_t e = 0; e < n * stride; ++e) work.square[e] = 0;
  const SumOrder inverse_order = product_order(chunk, chunk.casts.dA);
  product<T, is_fused>(inverse_order, n, work.n_columns, n, Factor<T>{work.dA, stride, 1}, work.A_transposed,
                       stride, work.square, stride, Start::zero);
  round_array(chunk.casts.dA, work.square, n * stride);
  transposed_lower_product<T, is_fused>(chunk, inverse_order, A, work.square, work.n_columns, stride,
                                        block.dAkk);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < stride; ++j)
      block.dAkk[i * stride + j] = j < i ? -block.dAkk[i * stride + j] : T(0);

  // dvb = A^T dv, dkb = A^T dw
  T* const dvb = work.value_scratch;
  transposed_lower_product<T, is_fused>(chunk, order, A, dv, work.v_columns, v_stride, dvb);
  transposed_lower_product<T, is_fused>(chunk, order, A, dw, work.k_columns, k_stride, work.dkb);
  for (std::size_t i = 0; i < n; ++i) {
    T of_values, of_keys;
    const std::size_t v_row = i * v_stride, k_row = i * k_stride;
    dot_of_row(chunk.operations, dvb + v_row, chunk.v + v_row, work.V, &of_values);
    dot_of_row(chunk.operations, work.dkb + k_row, work.k_decayed + k_row, work.K, &of_keys);
    block.dbeta[i] = of_values + of_keys;
    for (std::size_t v = 0; v < work.v_columns; ++v)
      block.value_gradient[v_row + v] = dvb[v_row + v] * chunk.beta[i];
  }
}

/// B3: dG through the states, and the rest of dk.
template <class T, bool is_fused>
void gate_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                    const ChunkBackwardWork<T>& work) {
  const std::size_t n = work.n, K = work.K, k_stride = chunk.key_stride;
  const SumOrder order{chunk.operations.reduction, is_fused};
  T *const last_row = work.last_row, *const decay = work.decay;
  column_sums(order, chunk.k, block.dk, n, work.k_columns, k_stride, last_row);
  exponential(chunk.operations.exponential, chunk.G + (n - 1) * k_stride, decay, K);
  for (std::size_t k = 0; k < K; ++k)
    last_row[k] = scalar_multiply_add<is_fused>(decay[k], work.state_products[k], last_row[k]);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t row = i * k_stride;
    for (std::size_t k = 0; k < K; ++k) {
      const std::size_t e = row + k;
      const T through_w = chunk.beta[i] * work.dkb[e];
      const T of_key = -(chunk.k[e] * block.dk[e]);
      block.dG[e] = scalar_multiply_add<is_fused>(chunk.q[e], block.dq[e], of_key);
      block.dG[e] = scalar_multiply_add<is_fused>(through_w, work.k_decayed[e], block.dG[e]);
      if (i + 1 == n) block.dG[e] = block.dG[e] + last_row[k];
    }
    decay_between(chunk, chunk.G + row, static_cast<const T*>(nullptr), work.exponent);
    for (std::size_t k = 0; k < K; ++k)
      block.dk[row + k] = scalar_multiply_add<is_fused>(chunk.beta[i] * work.dkb[row + k], work.exponent[k],
                                                        block.dk[row + k]);
  }
}

/// B4: what stays within the chunk, added to dq, dk, dbeta and dG.
template <class T, bool is_fused>
void add_intra_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                         const ChunkBackwardWork<T>& work) {
  const std::size_t n = work.n, K = work.K, k_stride = chunk.key_stride, stride = chunk.score_stride;
  const Rounding operands = chunk.casts.score_operands;
  rounded_copy(operands, used(block.given.dAqk, block.dAqk), n * stride, work.dAqk);
  rounded_copy(operands, used(block.given.dAkk, block.dAkk), n * stride, work.square);
  T* const beta_key = work.beta_key;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t k = 0; k < k_stride; ++k)
      beta_key[i * k_stride + k] = k < K ? chunk.k[i * k_stride + k] * chunk.beta[i] : T(0);
  rounded_copy(chunk.casts.beta_key, beta_key, n * k_stride, work.k_scratch);
  for (std::size_t e = 0; e < n * k_stride; ++e) work.dq_intra[e] = work.row[e] = work.column[e] = 0;
  intra_gradients<T, is_fused>(
      chunk, {{used(block.given.dAqk, block.dAqk), used(block.given.dAkk, block.dAkk), beta_key},
              {work.dAqk, work.square, work.k_scratch},
              work.dq_intra,
              work.row,
              work.column,
              work.dkb,
              work.k_decayed,
              work.part,
              work.exponent});
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t row = i * k_stride;
    T of_beta;
    dot_of_row(chunk.operations, work.row + row, chunk.k + row, K, &of_beta);
    block.dbeta[i] = block.dbeta[i] + of_beta;
    for (std::size_t e = row; e < row + K; ++e) {
      const T by_row = chunk.beta[i] * work.row[e], by_column = work.column[e];
      block.dq[e] = block.dq[e] + work.dq_intra[e];
      block.dk[e] = block.dk[e] + (by_row + by_column);
      const T of_key = chunk.k[e] * (by_row - by_column);
      block.dG[e] = block.dG[e] + scalar_multiply_add<is_fused>(chunk.q[e], work.dq_intra[e], of_key);
    }
  }
}

template <class T, bool is_fused>
void chunk_backward(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block) {
  const ChunkBackwardWork<T> work(chunk, block.scratch);
  score_gradients<T, is_fused>(chunk, block, work);
  state_gradients<T, is_fused>(chunk, block, work);
  inter_gradients<T, is_fused>(chunk, block, work);
  inverse_gradients<T, is_fused>(chunk, block, work);
  gate_gradients<T, is_fused>(chunk, block, work);
  add_intra_gradients<T, is_fused>(chunk, block, work);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
