// B2 and B3 of docs/kda.md, "Chunk backward", with Delta::residual: the adjoint of what runs forwards, v_new
// = A (beta (v - (k e^G) h)). Neither u nor w is formed.
#pragma once

#include "kda/kernels/chunk/backward_parts.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// What runs from one step to the next, in places that are free then.
template <class T>
struct ResidualWork {
  T* k_start;      ///< [n][key_stride] k e^G as an operand
  T* of_weighted;  ///< [n][value_stride] A^T dv, the gradient of beta e
  T* minus_dp;     ///< [n][value_stride] -beta A^T dv as an operand: the gradient of the prediction

  KDA_CHECK_TEAM explicit ResidualWork(const ChunkBackwardWork<T>& work)
      : k_start(work.k_scratch), of_weighted(work.value_scratch), minus_dp(work.v) {}
};

/// B2: dv = dv_local + kg dh, one sum; the gradient of v, and that of the entering state.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void residual_state_gradients(const ChunkBlock<T>& chunk,
                                                    const ChunkBackwardBlock<T>& block,
                                                    const ChunkBackwardWork<T>& work) {
  const ResidualWork<T> residual(work);
  const CastPoints& casts = chunk.casts;
  const SumOrder order = product_order(chunk, casts.operands);
  const std::size_t n = work.n, K = work.K, k_stride = chunk.key_stride, v_stride = chunk.value_stride;
  const T* const local = used(block.given.dv_local, block.dv_local);
  T* const dv = block.dv;
  each(n * v_stride, [=](std::size_t e) KDA_CHECK_BODY { dv[e] = local[e]; });
  product<T, is_fused>(order, n, work.v_columns, K, Factor<T>{used(chunk.given.kg, chunk.kg), k_stride, 1},
                       used(block.given.dh, block.dh), v_stride, dv, v_stride, Start::from_result);
  round_array(casts.dv, dv, n * v_stride);

  transposed_lower_product<T, is_fused>(chunk, order, used(chunk.given.Akk_inv, chunk.Akk_inv),
                                        used(block.given.dv, block.dv), work.v_columns, v_stride,
                                        residual.of_weighted);
  T *const of_value = block.value_gradient, *const minus_dp = residual.minus_dp;
  const T *const of_weighted = residual.of_weighted, *const beta = chunk.beta;
  each(n, v_stride, [=, columns = work.v_columns](std::size_t i, std::size_t v) KDA_CHECK_BODY {
    const std::size_t e = i * v_stride + v;
    of_value[e] = v < columns ? of_weighted[e] * beta[i] : T(0);
    minus_dp[e] = -of_value[e];
  });
  round_array(casts.operands, minus_dp, n * v_stride);

  // D = diag(e^Gn) D + scale qg^T do, and then - (k e^G)^T dp, one sum; where updates are added, D behind it
  T *const k_start = residual.k_start, *const decay = work.decay;
  const T *const key = chunk.read, *const G = chunk.G;
  each(n * k_stride, [=](std::size_t e) KDA_CHECK_BODY { k_start[e] = 0; });
  each_decay(
      chunk, n, decay, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY { return G[i * k_stride + k]; },
      [=](std::size_t i, std::size_t k, T of_row)
          KDA_CHECK_BODY { k_start[i * k_stride + k] = key[i * k_stride + k] * of_row; });
  round_array(casts.operands, k_start, n * k_stride);
  decays_of(chunk.operations, G + (n - 1) * k_stride, decay, K);
  round_array(casts.decay, decay, K);
  T *const by_output = work.h_transposed, *const gradient = block.state_gradient;  // not in use yet
  product<T, is_fused>(order, K, work.v_columns, n, Factor<T>{used(chunk.given.qg, chunk.qg), 1, k_stride},
                       work.d_o, v_stride, by_output, v_stride, Start::zero);
  const bool is_added = chunk.operations.update == Update::added;
  each(K, work.v_columns, [=, scale = chunk.scale](std::size_t k, std::size_t v) KDA_CHECK_BODY {
    const std::size_t e = k * v_stride + v;
    by_output[e] = scale * by_output[e];
    if (!is_added) gradient[e] = scalar_multiply_add<is_fused>(gradient[e], decay[k], by_output[e]);
  });
  product<T, is_fused>(order, K, work.v_columns, n, Factor<T>{k_start, 1, k_stride}, minus_dp, v_stride,
                       is_added ? by_output : gradient, v_stride, Start::from_result);
  if (is_added)
    each(K, work.v_columns, [=](std::size_t k, std::size_t v) KDA_CHECK_BODY {
      const std::size_t e = k * v_stride + v;
      gradient[e] = scalar_multiply_add<is_fused>(gradient[e], decay[k], by_output[e]);
    });
  round_array(casts.carry, gradient, K * v_stride);
}

/// B3: what goes through the states: dq, dk to the end of the chunk, in work.dkb that of k e^G; dw for those
/// who ask.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void residual_inter_gradients(const ChunkBlock<T>& chunk,
                                                    const ChunkBackwardBlock<T>& block,
                                                    const ChunkBackwardWork<T>& work) {
  const ResidualWork<T> residual(work);
  const SumOrder order = product_order(chunk, chunk.casts.operands);
  const std::size_t n = work.n, k_stride = chunk.key_stride, v_stride = chunk.value_stride;
  transpose(used(chunk.given.h, chunk.h), v_stride, work.K, work.V, work.h_transposed, k_stride);
  transpose(used(block.given.dh, block.dh), v_stride, work.K, work.V, work.dh_transposed, k_stride);
  const auto through = [&](const T* rows, const T* state, T* result) {
    product<T, is_fused>(order, n, work.k_columns, work.V, Factor<T>{rows, v_stride, 1}, state, k_stride,
                         result, k_stride, Start::zero);
  };
  through(work.d_o, work.h_transposed, block.dq);
  through(used(chunk.given.v_new, chunk.v_new), work.dh_transposed, block.dk);
  through(residual.minus_dp, work.h_transposed, work.dkb);
  if (chunk.forms_w) {
    T* const dw = block.dw;
    through(used(block.given.dv, block.dv), work.h_transposed, dw);
    each(n * k_stride, [=](std::size_t e) KDA_CHECK_BODY { dw[e] = -dw[e]; });
    round_array(chunk.casts.dw, dw, n * k_stride);
  }
  T *const dq = block.dq, *const dk = block.dk, *const of_start = work.dkb;
  const T* const G = chunk.G;
  each_decay(
      chunk, n, work.decay, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY { return G[i * k_stride + k]; },
      [=, scale = chunk.scale](std::size_t i, std::size_t k, T decay)
          KDA_CHECK_BODY { dq[i * k_stride + k] = scale * (dq[i * k_stride + k] * decay); },
      [=](std::size_t i, std::size_t k, T decay)
          KDA_CHECK_BODY { of_start[i * k_stride + k] = of_start[i * k_stride + k] * decay; });
  each_tail(chunk, work.decay, [=](std::size_t i, std::size_t k, T decay) KDA_CHECK_BODY {
    dk[i * k_stride + k] = dk[i * k_stride + k] * decay;
  });
}

/// B3: what goes through the inverse: dbeta = rows of (A^T dv) e, summed, and dAkk = -stril(A^T dA A^T) with
/// dA = stril(dv (beta e)^T).
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void residual_inverse_gradients(const ChunkBlock<T>& chunk,
                                                      const ChunkBackwardBlock<T>& block,
                                                      const ChunkBackwardWork<T>& work) {
  const ResidualWork<T> residual(work);
  const CastPoints& casts = chunk.casts;
  const SumOrder order = product_order(chunk, casts.operands);
  const std::size_t n = work.n, v_stride = chunk.value_stride, stride = chunk.score_stride;
  T *const error = work.d_o, *const weighted = residual.minus_dp;  // nobody needs those any more
  product<T, is_fused>(order, n, work.v_columns, work.K, Factor<T>{residual.k_start, chunk.key_stride, 1},
                       used(chunk.given.h, chunk.h), v_stride, error, v_stride, Start::zero);
  round_array(casts.prediction, error, n * v_stride);
  errors_of(chunk, error, error);
  each(n, [&](std::size_t i) KDA_CHECK_BODY {
    dot_of_row(by_lanes(sums_of_rows(chunk.operations), lanes_of::errors()),
               residual.of_weighted + i * v_stride, error + i * v_stride, work.V, block.dbeta + i);
  });
  weigh_errors(chunk, error, true, weighted);
  transpose(weighted, v_stride, n, work.V, work.v_transposed, stride);
  product<T, is_fused>(order, n, work.n_columns, work.V,
                       Factor<T>{used(block.given.dv, block.dv), v_stride, 1}, work.v_transposed, stride,
                       work.dA, stride, Start::zero);
  T* const dA = work.dA;
  each(n, stride, [=](std::size_t i, std::size_t j) KDA_CHECK_BODY {
    dA[i * stride + j] = j < i ? dA[i * stride + j] : T(0);
  });
  score_gradients_of_inverse<T, is_fused>(chunk, block, work, used(chunk.given.Akk_inv, chunk.Akk_inv));
}

/// B3: dG through the states, and the rest of dk.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void residual_gate_gradients(const ChunkBlock<T>& chunk,
                                                   const ChunkBackwardBlock<T>& block,
                                                   const ChunkBackwardWork<T>& work) {
  const std::size_t n = work.n, K = work.K, stride = chunk.key_stride;
  T *const last_row = work.last_row, *const decay = work.decay;
  column_sums(by_lanes({chunk.operations.reduction, is_fused}, lanes_of::rows_of_chunk()), chunk.k, block.dk,
              n, work.k_columns, stride, last_row);
  decays_of(chunk.operations, chunk.G + (n - 1) * stride, decay, K);
  const T* const products = work.state_products;
  each(K, [=](std::size_t k) KDA_CHECK_BODY {
    last_row[k] = scalar_multiply_add<is_fused>(decay[k], products[k], last_row[k]);
  });
  T *const dG = block.dG, *const dk = block.dk, *const dread = block.dread;
  const T *const q = chunk.q, *const key = chunk.k, *const read = chunk.read, *const dq = block.dq,
                 *const of_start = work.dkb;
  each(n, K, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
    const std::size_t e = i * stride + k;
    const T through_states = scalar_multiply_add<is_fused>(q[e], dq[e], -(key[e] * dk[e]));
    const T sum = scalar_multiply_add<is_fused>(read[e], of_start[e], through_states);
    dG[e] = i + 1 == n ? sum + last_row[k] : sum;
    if (dread != nullptr)
      dread[e] = of_start[e];
    else
      dk[e] = dk[e] + of_start[e];
  });
}

template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void residual_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                                              const ChunkBackwardWork<T>& work) {
  residual_inter_gradients<T, is_fused>(chunk, block, work);
  residual_inverse_gradients<T, is_fused>(chunk, block, work);
  residual_gate_gradients<T, is_fused>(chunk, block, work);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
