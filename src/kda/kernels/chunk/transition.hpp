// What a run of tokens does to the state that enters it, S -> M S + A (docs/arithmetic.md, "segments"): M of
// one chunk more, and the products that compose and apply such maps.
#pragma once

#include "kda/kernels/chunk/chunk.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

/// M = (diag(e^Gn) - left^T right) M: kg and w, backwards w and kg. `decay`: [key_stride] scratch.
template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void multiply_transition(const ChunkBlock<T>& chunk, const T* left, const T* right,
                                               T* decay, const TransitionBlock<T>& transition) {
  const std::size_t K = chunk.key_dim, stride = chunk.key_stride, columns = (K + 15) / 16 * 16;
  const CastPoints& casts = chunk.casts;
  T *const own = transition.scratch, *const product_of = own + K * stride, *const M = transition.M;
  decays_of(chunk.operations, end_of(chunk), decay, K);
  round_array(casts.decay, decay, K);
  product<T, is_fused>(product_order(chunk, casts.operands), K, columns, chunk.rows,
                       Factor<T>{left, 1, stride}, right, stride, own, stride, Start::zero);
  const Subnormals subnormals = chunk.operations.subnormals;
  each(K, K, [=](std::size_t k, std::size_t j) KDA_CHECK_BODY {
    const T of_diagonal = k == j ? flushed(subnormals, decay[k]) : T(0);
    own[k * stride + j] = of_diagonal - own[k * stride + j];
  });
  round_array(casts.transition, own, K * stride);
  product<T, is_fused>(product_order(chunk, casts.transition), K, columns, K, Factor<T>{own, stride, 1}, M,
                       stride, product_of, stride, Start::zero);
  each(K, columns,
       [=](std::size_t k, std::size_t j) KDA_CHECK_BODY { M[k * stride + j] = product_of[k * stride + j]; });
  round_array(casts.transition, M, K * stride);
}

template <class T, bool is_fused>
KDA_CHECK_TEAM_CALLED void map_product(const MapProduct<T>& map) {
  const SumOrder order = product_order(
      map.operations, tensor_core(map.operations.reduction, map.casts.transition), map.casts.tensor_core);
  product<T, is_fused>(order, map.key_dim, map.columns, map.key_dim, Factor<T>{map.M, map.M_stride, 1}, map.x,
                       map.stride, map.y, map.stride, map.adds ? Start::from_result : Start::zero);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
