// What a run of tokens does to the state that enters it, S -> M S + A (docs/arithmetic.md, "segments"), and
// the products that compose and apply such maps.
#include "kda/kernels/chunk/chunk_backward.hpp"
#include "kda/kernels/entries.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

/// M = (diag(e^Gn) - left^T right) M: kg and w, backwards w and kg.
template <class T, bool is_fused>
void multiply_transition(const ChunkBlock<T>& chunk, const T* left, const T* right, T* decay,
                         const TransitionBlock<T>& transition) {
  const std::size_t K = chunk.key_dim, stride = chunk.key_stride, columns = (K + 15) / 16 * 16;
  const CastPoints& casts = chunk.casts;
  T *const own = transition.scratch, *const product_of = own + K * stride, *const M = transition.M;
  decays_of(chunk.operations, end_of(chunk), decay, K);
  round_array(casts.decay, decay, K);
  product<T, is_fused>(product_order(chunk, casts.operands), K, columns, chunk.rows,
                       Factor<T>{left, 1, stride}, right, stride, own, stride, Start::zero);
  for (std::size_t k = 0; k < K; ++k)
    for (std::size_t j = 0; j < K; ++j) {
      const T of_diagonal = k == j ? flushed(chunk.operations.subnormals, decay[k]) : T(0);
      own[k * stride + j] = of_diagonal - own[k * stride + j];
    }
  round_array(casts.transition, own, K * stride);
  product<T, is_fused>(product_order(chunk, casts.transition), K, columns, K, Factor<T>{own, stride, 1}, M,
                       stride, product_of, stride, Start::zero);
  for (std::size_t k = 0; k < K; ++k)
    for (std::size_t j = 0; j < columns; ++j) M[k * stride + j] = product_of[k * stride + j];
  round_array(casts.transition, M, K * stride);
}

}  // namespace

template <class T, bool is_fused>
void chunk_map(const ChunkBlock<T>& chunk, const TransitionBlock<T>& transition) {
  const ChunkWork<T> work(chunk);
  scores_and_inverse<T, is_fused>(chunk, work);
  operands<T, is_fused>(chunk, work);
  read_state<T, is_fused>(chunk, work);
  write_state<T, is_fused>(chunk, work);
  multiply_transition<T, is_fused>(chunk, used(chunk.given.kg, chunk.kg), used(chunk.given.w, chunk.w),
                                   work.decay, transition);
}

template <class T, bool is_fused>
void chunk_map_backward(const ChunkBlock<T>& chunk, const ChunkBackwardBlock<T>& block,
                        const TransitionBlock<T>& transition) {
  {
    const ChunkWork<T> work(chunk);
    scores_and_inverse<T, is_fused>(chunk, work);
    operands<T, is_fused>(chunk, work);
  }
  const ChunkBackwardWork<T> work(chunk, block.scratch);
  local_value_gradients<T, is_fused>(chunk, block, work);
  read_state_gradient(chunk, block);
  leave_state_gradient<T, is_fused>(chunk, block, work);
  multiply_transition<T, is_fused>(chunk, used(chunk.given.w, chunk.w), used(chunk.given.kg, chunk.kg),
                                   work.decay, transition);
}

template <class T, bool is_fused>
void map_product(const MapProduct<T>& map) {
  const SumOrder order = product_order(
      map.operations, tensor_core(map.operations.reduction, map.casts.transition), map.casts.tensor_core);
  product<T, is_fused>(order, map.key_dim, map.columns, map.key_dim, Factor<T>{map.M, map.M_stride, 1}, map.x,
                       map.stride, map.y, map.stride, map.adds ? Start::from_result : Start::zero);
}

#define KDA_CHECK_INSTANTIATE(T, is_fused)                                                          \
  template void chunk_map<T, is_fused>(const ChunkBlock<T>&, const TransitionBlock<T>&);            \
  template void chunk_map_backward<T, is_fused>(const ChunkBlock<T>&, const ChunkBackwardBlock<T>&, \
                                                const TransitionBlock<T>&);                         \
  template void map_product<T, is_fused>(const MapProduct<T>&);
KDA_CHECK_INSTANTIATE(float, false)
KDA_CHECK_INSTANTIATE(float, true)
KDA_CHECK_INSTANTIATE(double, false)
KDA_CHECK_INSTANTIATE(double, true)
#undef KDA_CHECK_INSTANTIATE

}  // namespace kda_check::kda::KDA_CHECK_ISA
