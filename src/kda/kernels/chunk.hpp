// The staged chunk form, F2 to F11 of docs/kda.md, "Stages", with the cast points of "FLA chunk forward"
// where the arithmetic asks for them.
#pragma once

#include "kda/kernels/inverse.hpp"
#include "kda/kernels/scores.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template <class T>
KDA_CHECK_INLINE SumOrder product_order(const ChunkBlock<T>& chunk, Rounding operands) {
  return {chunk.operations.reduction, chunk.operations.is_fused, Adder::thread, mma_step(operands)};
}

/// Rows of A against `right`, 16 at a time: row i of a lower triangular A has nothing beyond column i.
template <class T, bool is_fused>
void lower_product(const ChunkBlock<T>& chunk, const T* a, const T* right, std::size_t columns,
                   std::size_t stride, T* result, Start start) {
  const SumOrder order = product_order(chunk, chunk.casts.operands);
  for (std::size_t from = 0; from < chunk.rows; from += 16) {
    const std::size_t to = from + 16 < chunk.rows ? from + 16 : chunk.rows;
    product<T, is_fused>(order, to - from, columns, to,
                         Factor<T>{a + from * chunk.score_stride, chunk.score_stride, 1}, right, stride,
                         result + from * stride, stride, start);
  }
}

template <class T>
KDA_CHECK_INLINE const T* used(const T* given, const T* computed) {
  return given != nullptr ? given : computed;
}

template <class T, bool is_fused>
void chunk_forward(const ChunkBlock<T>& chunk) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, k_stride = chunk.key_stride,
                    v_stride = chunk.value_stride;
  const std::size_t k_columns = (K + 15) / 16 * 16, v_columns = (chunk.value_dim + 15) / 16 * 16;
  const CastPoints& casts = chunk.casts;
  const ChunkScratch sizes(n, k_stride, v_stride);
  T* next = chunk.scratch;
  const auto take = [&next](std::size_t count) __attribute__((always_inline)) {
    T* const memory = next;
    next += count;
    return memory;
  };
  T* const operand = take(sizes.operand);  // [n][the wider stride]
  ScoreScratch<T> score_scratch;
  score_scratch.q_left = take(sizes.left);
  score_scratch.k_left = take(sizes.left);
  score_scratch.k_right = take(sizes.right);
  score_scratch.exponent = take(sizes.row);
  score_scratch.q_scores = take(sizes.scores);
  score_scratch.k_scores = take(sizes.scores);
  T* const inverse_scratch = take(sizes.inverse);
  T* const decay = take(sizes.row);

  scores<T, is_fused>(chunk, score_scratch);  // F2, F3
  round_array(casts.Aqk, chunk.Aqk, n * chunk.score_stride);
  round_array(casts.L, chunk.L, n * chunk.score_stride);
  invert<T, is_fused>(chunk.inverse, product_order(chunk, casts.inverse_operands), n, chunk.inverse_rows,
                      chunk.L, chunk.Akk_inv, chunk.score_stride, casts.inverse_operands,
                      inverse_scratch);  // F4
  round_array(casts.Akk_inv, chunk.Akk_inv, n * chunk.score_stride);

  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t v = 0; v < v_stride; ++v)
      operand[i * v_stride + v] = chunk.v[i * v_stride + v] * chunk.beta[i];
  round_array(casts.operands, operand, n * v_stride);
  lower_product<T, is_fused>(chunk, used(chunk.given.Akk_inv, chunk.Akk_inv), operand, v_columns, v_stride,
                             chunk.u,
                             Start::zero);  // F5 u = A (beta v)
  round_array(casts.u, chunk.u, n * v_stride);

  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t row = i * k_stride;
    decay_between(chunk, chunk.G + row, static_cast<const T*>(nullptr), decay);
    for (std::size_t k = 0; k < K; ++k) chunk.qg[row + k] = chunk.q[row + k] * decay[k];  // F7 qg = q 2^G
    for (std::size_t k = 0; k < K; ++k) operand[row + k] = chunk.k[row + k] * chunk.beta[i];
    round_array(casts.beta_key, operand + row, K);
    for (std::size_t k = 0; k < K; ++k) operand[row + k] = operand[row + k] * decay[k];
    for (std::size_t k = K; k < k_columns; ++k) operand[row + k] = 0;
  }
  round_array(casts.operands, chunk.qg, n * k_stride);
  round_array(casts.operands, operand, n * k_stride);
  lower_product<T, is_fused>(chunk, used(chunk.given.Akk_inv, chunk.Akk_inv), operand, k_columns, k_stride,
                             chunk.w,
                             Start::zero);  // F6 w = A (beta k 2^G)
  round_array(casts.w, chunk.w, n * k_stride);

  const T* const last = chunk.G + (n - 1) * k_stride;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t row = i * k_stride;
    if (chunk.tail != nullptr) {
      decay_between(chunk, chunk.tail + row, static_cast<const T*>(nullptr), decay);
    } else {
      decay_between(chunk, last, chunk.G + row, decay);
    }
    for (std::size_t k = 0; k < K; ++k)
      chunk.kg[row + k] = chunk.k[row + k] * decay[k];  // F7 kg = k 2^(Gn - G)
  }
  round_array(casts.operands, chunk.kg, n * k_stride);

  for (std::size_t e = 0; e < K * v_stride; ++e) chunk.h[e] = chunk.state[e];  // F8
  round_array(casts.state, chunk.h, K * v_stride);
  const T* const h = used(chunk.given.h, chunk.h);
  if (chunk.given.h != nullptr)
    for (std::size_t e = 0; e < K * v_stride; ++e) chunk.state[e] = h[e];
  const SumOrder order = product_order(chunk, casts.operands);
  product<T, is_fused>(order, n, v_columns, K, Factor<T>{used(chunk.given.w, chunk.w), k_stride, 1}, h,
                       v_stride, chunk.v_new, v_stride, Start::zero);
  round_array(casts.prediction, chunk.v_new, n * v_stride);
  const T* const u = used(chunk.given.u, chunk.u);
  for (std::size_t e = 0; e < n * v_stride; ++e)
    chunk.v_new[e] = u[e] - chunk.v_new[e];  // F9 v_new = u - w S
  round_array(casts.v_new, chunk.v_new, n * v_stride);
  const T* const v_new = used(chunk.given.v_new, chunk.v_new);

  product<T, is_fused>(order, n, v_columns, K, Factor<T>{used(chunk.given.qg, chunk.qg), k_stride, 1}, h,
                       v_stride, chunk.o, v_stride, Start::zero);
  for (std::size_t e = 0; e < n * v_stride; ++e) chunk.o[e] = chunk.scale * chunk.o[e];
  lower_product<T, is_fused>(chunk, used(chunk.given.Aqk, chunk.Aqk), v_new, v_columns, v_stride, chunk.o,
                             Start::from_result);  // F10 o = scale (qg S) + Aqk v_new

  exponential(chunk.operations.exponential, last, decay, K);
  round_array(casts.decay, decay, K);
  for (std::size_t k = 0; k < K; ++k)
    for (std::size_t v = 0; v < v_columns; ++v)
      chunk.state[k * v_stride + v] = chunk.state[k * v_stride + v] * decay[k];
  product<T, is_fused>(order, K, v_columns, n, Factor<T>{used(chunk.given.kg, chunk.kg), 1, k_stride}, v_new,
                       v_stride, chunk.state, v_stride,
                       Start::from_result);  // F11 S = diag(2^Gn) S + kg^T v_new
  round_array(casts.carry, chunk.state, K * v_stride);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
