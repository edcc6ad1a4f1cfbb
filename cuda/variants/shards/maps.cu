// What a run of chunks does to the state, S -> M S + A: M, from the identity, M = T M with T = diag(e^Gn) -
// kg^T w of one chunk after the other; of the state's gradient T = diag(e^Gn) - w^T kg, from the last chunk
// on. And products of such maps.
#include "cuda/teams/chunk.cuh"
#include "cuda/variants/shards/segments.cuh"
#include "kda/kernels/chunk/transition.hpp"

namespace kda_check::cuda {

namespace {

/// A team takes the heads of parts, one after the other.
template <class T, bool is_fused>
__global__ void __launch_bounds__(state_threads_of_team)
    transitions_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ TeamWork<T> work,
                       bool from_the_end, T* maps) {
  __shared__ BlockMemory<kda::ChunkBlock<T>> memory;
  kda::ChunkBlock<T>& block = memory.block();
  const std::size_t stride = work.key_stride, size = p.K * stride;
  T *const scratch = work.scratch + blockIdx.x * work.scratch_elements, *const decay = scratch + 2 * size;
  for (int item = blockIdx.x; item < work.sequence_count * work.heads; item += gridDim.x) {
    const int local = item / work.sequence_count, sequence = item % work.sequence_count;
    const PieceRange chunks = work.chunks_of[sequence];
    T* const M = maps + work.state_of(local, sequence) * size;
    kernels::each(p.K, stride, [=](std::size_t k, std::size_t j) { M[k * stride + j] = T(k == j ? 1 : 0); });
    for (unsigned n = 0; n < chunks.count; ++n) {
      const unsigned number = chunks.first + (from_the_end ? chunks.count - 1 - n : n);
      __syncthreads();  // nobody reads `block` any more
      if (threadIdx.x == 0) fill_block(p, work, work.chunks[number], local, block);
      __syncthreads();
      kernels::multiply_transition<T, is_fused>(block, from_the_end ? block.w : block.kg,
                                                from_the_end ? block.kg : block.w, decay, {M, scratch});
    }
  }
}

/// A team takes the heads of jobs.
template <class T, bool is_fused>
__global__ void __launch_bounds__(state_threads_of_team)
    product_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ TeamWork<T> work,
                   const __grid_constant__ MapProduct<T> product, const MapJob* jobs, int count) {
  const std::size_t width = product.width, stride = product.stride, size = p.K * stride;
  for (int item = blockIdx.x; item < count * work.heads; item += gridDim.x) {
    const MapJob job = jobs[item / work.heads];
    const auto number = [&](std::uint32_t n) { return std::size_t{n} * work.heads + item % work.heads; };
    const T *const x = product.x + number(job.x) * size, *const plus =
                                                             product.plus == nullptr
                                                                 ? nullptr
                                                                 : product.plus + number(job.plus) * size;
    T *const y = product.y + number(job.y) * size, *const operand =
                                                       work.scratch + blockIdx.x * work.scratch_elements;
    kernels::each(size, [=](std::size_t e) {
      operand[e] = kda::rounded(product.factor, x[e]);
      if (plus != nullptr) y[e] = plus[e];
    });
    kernels::map_product<T, is_fused>(
        {work.operations, p.casts, std::size_t(p.K), (width + 15) / 16 * 16, std::size_t(work.key_stride),
         stride, product.M + number(job.map) * p.K * work.key_stride, operand, y, plus != nullptr});
    kernels::round_array(product.result, y, size);
  }
}

template <class T>
__global__ void round_kernel(kda::Rounding rounding, T* x, std::size_t count) {
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x)
    x[i] = kda::rounded(rounding, x[i]);
}

}  // namespace

template <class T>
void launch_transitions(bool from_the_end, const DeviceProblem& p, const TeamWork<T>& work, T* M) {
  launch("maps of parts",
         work.operations.is_fused ? transitions_kernel<T, true> : transitions_kernel<T, false>,
         dim3(std::min(work.teams, work.sequence_count * work.heads)), state_threads_of_team, 0, p, work,
         from_the_end, M);
}
template <class T>
void launch_map_products(const DeviceProblem& p, const TeamWork<T>& work, const MapProduct<T>& product,
                         const MapJob* jobs, int count) {
  launch("products of maps", work.operations.is_fused ? product_kernel<T, true> : product_kernel<T, false>,
         dim3(std::min(work.teams, count * work.heads)), state_threads_of_team, 0, p, work, product, jobs,
         count);
}
template <class T>
void launch_round(kda::Rounding rounding, T* x, std::size_t count) {
  if (rounding != kda::Rounding::none)
    launch("maps rounded", round_kernel<T>, dim3(1024), team_threads, 0, rounding, x, count);
}

#define KDA_CHECK_INSTANTIATE(T)                                                                    \
  template void launch_transitions(bool, const DeviceProblem&, const TeamWork<T>&, T*);             \
  template void launch_map_products(const DeviceProblem&, const TeamWork<T>&, const MapProduct<T>&, \
                                    const MapJob*, int);                                            \
  template void launch_round(kda::Rounding, T*, std::size_t);
KDA_CHECK_INSTANTIATE(float)
KDA_CHECK_INSTANTIATE(double)
#undef KDA_CHECK_INSTANTIATE

}  // namespace kda_check::cuda
