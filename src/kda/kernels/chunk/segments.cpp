// Chunks of a run of tokens, for what it does to the state that enters it (transition.hpp).
#include "kda/kernels/chunk/chunk_backward.hpp"
#include "kda/kernels/chunk/transition.hpp"
#include "kda/kernels/entries.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

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
