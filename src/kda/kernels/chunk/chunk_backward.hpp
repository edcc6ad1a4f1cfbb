// The staged chunk form backwards, B1 to B4 of docs/kda.md, "Chunk backward", with the cast points of FLA's
// kernels where the arithmetic asks for them. The forward arrays of the chunk are read as they were left.
#pragma once

#include "kda/kernels/chunk/residual_backward.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// B2: dv = dv_local + kg dh; the gradient of the entering state.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void state_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                                           const ChunkBackwardWork<T>& work) {
  const SumOrder order = product_order(chunk, chunk.casts.operands);
  const std::size_t n = work.n, K = work.K, k_stride = chunk.key_stride, v_stride = chunk.value_stride;
  const T* const dh = used(block.given.dh, block.dh);
  const T* const local = used(block.given.dv_local, block.dv_local);
  T* const dv = block.dv;
  const bool is_chained = sums_as_triton(chunk) && K <= most_chained_channels;
  if (is_chained) each(n * v_stride, [=](std::size_t e) KDA_CHECK_BODY { dv[e] = local[e]; });
  product<T, is_fused>(order, n, work.v_columns, K, Factor<T>{used(chunk.given.kg, chunk.kg), k_stride, 1},
                       dh, v_stride, dv, v_stride, is_chained ? Start::from_result : Start::zero);
  if (!is_chained) each(n * v_stride, [=](std::size_t e) KDA_CHECK_BODY { dv[e] = dv[e] + local[e]; });
  round_array(chunk.casts.dv, block.dv, n * v_stride);

  // D = diag(exp(Gn)) dh + scale qg^T do - w^T dv
  T* const decay = work.decay;
  decays_of(chunk.operations, chunk.G + (n - 1) * k_stride, decay, K);
  round_array(chunk.casts.decay, decay, K);
  T *const by_output = work.h_transposed, *const by_value = work.dh_transposed;  // not in use yet
  product<T, is_fused>(order, K, work.v_columns, n, Factor<T>{used(chunk.given.qg, chunk.qg), 1, k_stride},
                       work.d_o, v_stride, by_output, v_stride, Start::zero);
  product<T, is_fused>(order, K, work.v_columns, n, Factor<T>{used(chunk.given.w, chunk.w), 1, k_stride},
                       used(block.given.dv, block.dv), v_stride, by_value, v_stride, Start::zero);
  T* const gradient = block.state_gradient;
  each(K, work.v_columns, [=, scale = chunk.scale](std::size_t k, std::size_t v) KDA_CHECK_BODY {
    const std::size_t e = k * v_stride + v;
    gradient[e] = scalar_multiply_add<is_fused>(
        gradient[e], decay[k], scalar_multiply_add<is_fused>(scale, by_output[e], -by_value[e]));
  });
  round_array(chunk.casts.carry, block.state_gradient, K * v_stride);
}

/// B3: what goes through the states: dq, dk, dw.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void inter_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
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
  T *const dq = block.dq, *const dk = block.dk, *const dw = block.dw, *const k_decayed = work.k_decayed;
  const T *const key = chunk.read, *const G = chunk.G;
  each(n * k_stride, [=](std::size_t e) KDA_CHECK_BODY { dw[e] = -dw[e]; });
  round_array(chunk.casts.dw, dw, n * k_stride);
  each_decay(
      chunk, n, work.decay, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY { return G[i * k_stride + k]; },
      [=, scale = chunk.scale](std::size_t i, std::size_t k, T decay)
          KDA_CHECK_BODY { dq[i * k_stride + k] = scale * (dq[i * k_stride + k] * decay); },
      [=](std::size_t i, std::size_t k, T decay)
          KDA_CHECK_BODY { k_decayed[i * k_stride + k] = key[i * k_stride + k] * decay; });
  each(n, k_stride - K,
       [=](std::size_t i, std::size_t k) KDA_CHECK_BODY { k_decayed[i * k_stride + K + k] = 0; });
  each_tail(chunk, work.decay, [=](std::size_t i, std::size_t k, T decay) KDA_CHECK_BODY {
    dk[i * k_stride + k] = dk[i * k_stride + k] * decay;
  });
}

/// B3: what goes through the inverse: the gradients of v and beta, dkb, and dAkk = -stril(A^T stril(dA) A^T).
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void inverse_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
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
  T* const dA = work.dA;
  const T* const beta = chunk.beta;
  each(n, stride, [=](std::size_t i, std::size_t j) KDA_CHECK_BODY {
    dA[i * stride + j] = j < i ? dA[i * stride + j] * beta[j] : T(0);
  });
  score_gradients_of_inverse<T, is_fused>(chunk, block, work, A);

  // dvb = A^T dv, dkb = A^T dw
  T* const dvb = work.value_scratch;
  transposed_lower_product<T, is_fused>(chunk, order, A, dv, work.v_columns, v_stride, dvb);
  transposed_lower_product<T, is_fused>(chunk, order, A, dw, work.k_columns, k_stride, work.dkb);
  if (sums_as_triton(chunk))
    triton_strengths(chunk, block.layouts, dvb, work.dkb, work.k_decayed, block.dbeta);
  else
    each(n, [&](std::size_t i) KDA_CHECK_BODY {
      const SumOrder sums = by_lanes(sums_of_rows(chunk.operations), lanes_of::errors());
      T of_values, of_keys;
      const std::size_t v_row = i * v_stride, k_row = i * k_stride;
      dot_of_row(sums, dvb + v_row, chunk.v + v_row, work.V, &of_values);
      dot_of_row(sums, work.dkb + k_row, work.k_decayed + k_row, work.K, &of_keys);
      block.dbeta[i] = of_values + of_keys;
    });
  T* const gradient = block.value_gradient;
  each(n, work.v_columns, [=](std::size_t i, std::size_t v) KDA_CHECK_BODY {
    gradient[i * v_stride + v] = dvb[i * v_stride + v] * beta[i];
  });
}

/// B3: dG through the states, and the rest of dk.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void gate_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                                          const ChunkBackwardWork<T>& work) {
  const std::size_t n = work.n, K = work.K, k_stride = chunk.key_stride;
  const SumOrder order = by_lanes({chunk.operations.reduction, is_fused}, lanes_of::rows_of_chunk());
  T *const last_row = work.last_row, *const decay = work.decay;
  if (sums_as_triton(chunk))
    return triton_gate_gradients<T, is_fused>(
        chunk, block,
        {work.dkb, work.k_decayed, work.state_products, work.decay, work.last_row, work.exponent});
  column_sums(order, chunk.k, block.dk, n, work.k_columns, k_stride, last_row);
  decays_of(chunk.operations, chunk.G + (n - 1) * k_stride, decay, K);
  const T* const products = work.state_products;
  each(K, [=](std::size_t k) KDA_CHECK_BODY {
    last_row[k] = scalar_multiply_add<is_fused>(decay[k], products[k], last_row[k]);
  });
  T *const dG = block.dG, *const dk = block.dk;
  const T *const q = chunk.q, *const key = chunk.k, *const G = chunk.G, *const beta = chunk.beta,
                 *const dq = block.dq, *const dkb = work.dkb, *const k_decayed = work.k_decayed;
  each(n, K, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
    const std::size_t e = i * k_stride + k;
    const T through_w = beta[i] * dkb[e];
    const T of_key = -(key[e] * dk[e]);
    const T through_states = scalar_multiply_add<is_fused>(q[e], dq[e], of_key);
    const T sum = scalar_multiply_add<is_fused>(through_w, k_decayed[e], through_states);
    dG[e] = i + 1 == n ? sum + last_row[k] : sum;
  });
  T* const dread = block.dread != nullptr ? block.dread : dk;
  if (dread != dk) each(n * k_stride, [=](std::size_t e) KDA_CHECK_BODY { dread[e] = 0; });
  each_decay(
      chunk, n, work.exponent,
      [=](std::size_t i, std::size_t k) KDA_CHECK_BODY { return G[i * k_stride + k]; },
      [=](std::size_t i, std::size_t k, T of_row) KDA_CHECK_BODY {
        const std::size_t e = i * k_stride + k;
        dread[e] = scalar_multiply_add<is_fused>(beta[i] * dkb[e], of_row, dread[e]);
      });
}

/// B4: what stays within the chunk, added to dq, dk, dbeta and dG.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void add_intra_gradients(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                                               const ChunkBackwardWork<T>& work) {
  const std::size_t n = work.n, K = work.K, k_stride = chunk.key_stride, stride = chunk.score_stride;
  const Rounding operands = chunk.casts.score_operands;
  rounded_copy(operands, used(block.given.dAqk, block.dAqk), n * stride, work.dAqk);
  rounded_copy(operands, used(block.given.dAkk, block.dAkk), n * stride, work.square);
  T* const beta_key = work.beta_key;
  each(n, k_stride, [&](std::size_t i, std::size_t k) KDA_CHECK_BODY {
    beta_key[i * k_stride + k] = k < K ? chunk.read[i * k_stride + k] * chunk.beta[i] : T(0);
  });
  rounded_copy(chunk.casts.beta_key, beta_key, n * k_stride, work.k_scratch);
  each(n * k_stride,
       [&](std::size_t e) KDA_CHECK_BODY { work.dq_intra[e] = work.row[e] = work.column[e] = 0; });
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
  if (sums_as_triton(chunk))
    return triton_add_intra_gradients<T, is_fused>(chunk, block, work.dq_intra, work.row, work.column);
  each(n, [&](std::size_t i) KDA_CHECK_BODY {
    T of_beta;
    dot_of_row(by_lanes(sums_of_rows(chunk.operations), lanes_of::keys(K)), work.row + i * k_stride,
               chunk.read + i * k_stride, K, &of_beta);
    block.dbeta[i] = block.dbeta[i] + of_beta;
  });
  T *const dq = block.dq, *const dk = block.dk, *const dG = block.dG;
  const T *const q = chunk.q, *const key = chunk.k, *const beta = chunk.beta, *const dq_intra = work.dq_intra,
                 *const rows = work.row, *const columns = work.column, *const read = chunk.read;
  T* const dread = block.dread;
  each(n, K, [=](std::size_t i, std::size_t k) KDA_CHECK_BODY {
    const std::size_t e = i * k_stride + k;
    const T by_row = beta[i] * rows[e], by_column = columns[e];
    dq[e] = dq[e] + dq_intra[e];
    T of_key;
    if (dread == nullptr) {
      dk[e] = dk[e] + (by_row + by_column);
      of_key = key[e] * (by_row - by_column);
    } else {
      dk[e] = dk[e] + by_column, dread[e] = dread[e] + by_row;
      of_key = scalar_multiply_add<is_fused>(read[e], by_row, -(key[e] * by_column));
    }
    dG[e] = dG[e] + scalar_multiply_add<is_fused>(q[e], dq_intra[e], of_key);
  });
}

/// B2.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void leave_state_gradient(const ChunkBlock<T>& chunk,
                                                const ChunkBackwardBlock<T>& block,
                                                const ChunkBackwardWork<T>& work) {
  if (chunk.operations.delta == Delta::residual)
    residual_state_gradients<T, is_fused>(chunk, block, work);
  else
    state_gradients<T, is_fused>(chunk, block, work);
}

template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void chunk_backward(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block) {
  const ChunkBackwardWork<T> work(chunk, block.scratch);
  local_value_gradients<T, is_fused>(chunk, block, work);
  score_gradients<T, is_fused>(chunk, block, work);
  read_state_gradient(chunk, block);
  state_products(chunk, block, work);
  leave_state_gradient<T, is_fused>(chunk, block, work);
  if (chunk.operations.delta == Delta::residual) {
    residual_gradients<T, is_fused>(chunk, block, work);
  } else {
    inter_gradients<T, is_fused>(chunk, block, work);
    inverse_gradients<T, is_fused>(chunk, block, work);
    gate_gradients<T, is_fused>(chunk, block, work);
  }
  add_intra_gradients<T, is_fused>(chunk, block, work);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
