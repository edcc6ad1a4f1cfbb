// The chunk form backwards, after F1 to F7: what a chunk has for itself, the states from chunk to chunk and
// their gradients from the last chunk to the first, then all that is left for many chunks side by side.
#include <algorithm>

#include "cuda/teams/chunk.cuh"
#include "cuda/teams/gradient_work.cuh"
#include "kda/kernels/chunk/chunk_backward.hpp"

namespace kda_check::cuda {

namespace {

using kda::Stage;

/// A chunk of a head with its gradients, for one thread to fill; h and what nobody reads later are in the
/// scratch memory of the team.
template <class T>
__device__ void fill_blocks(const DeviceProblem& p, const TeamGradientWork<T>& work, int number, int local,
                            kda::ChunkBlock<T>& chunk, kda::ChunkBackwardBlock<T>& block) {
  const TokenRange tokens = work.chunks[number];
  fill_block(p, work, tokens, local, chunk);
  const std::size_t row = work.token_of(local, tokens.first), keys = row * work.key_stride,
                    values = row * work.value_stride, matrix = work.matrix_of(local, number, p);
  const GradientScratch sizes(work.C, p.K, p.V, work.key_stride, work.value_stride);
  T* scratch = work.scratch + blockIdx.x * work.scratch_elements;
  const auto take = [&scratch](std::size_t count) {
    T* const memory = scratch;
    scratch += count;
    return memory;
  };
  block = {};
  block.scratch = take(sizes.of_kernels);
  chunk.h = take(sizes.state), block.dh = take(sizes.state);
  block.dAqk = take(sizes.square), block.dAkk = take(sizes.square), block.dw = take(sizes.by_key);
  block.output_gradient = work.d_o + values;
  block.entering_state = work.entering + matrix, block.state_gradient = work.leaving + matrix;
  block.dv_local = block.value_gradient = work.written + values, block.dv = work.dv + values;
  block.dq = work.dq + keys, block.dk = work.dk + keys, block.dG = work.dg + keys;
  block.dread = work.dread == nullptr ? nullptr : work.dread + keys;
  block.dbeta = work.dbeta + row;
}

/// What every kernel here has in shared memory.
template <class T>
struct Blocks {
  BlockMemory<kda::ChunkBlock<T>> chunk;
  BlockMemory<kda::ChunkBackwardBlock<T>> gradients;

  /// For all threads of a team, which may still read what was there before.
  __device__ void fill(const DeviceProblem& p, const TeamGradientWork<T>& work, int number, int local) {
    __syncthreads();
    if (threadIdx.x == 0) fill_blocks(p, work, number, local, chunk.block(), gradients.block());
    __syncthreads();
  }
  /// `do` was rounded when it was read.
  __device__ kernels::ChunkBackwardWork<T> scratch() {
    kernels::ChunkBackwardWork<T> scratch(chunk.block(), gradients.block().scratch);
    scratch.d_o = const_cast<T*>(gradients.block().output_gradient);
    return scratch;
  }
};

template <class T>
__device__ void copy(const T* from, std::size_t count, T* to) {
  kernels::each(count, [=](std::size_t e) { to[e] = from[e]; });
}

/// dv_local of B1, a team chunk after chunk.
template <class T, bool is_fused>
__global__ void __launch_bounds__(team_threads)
    local_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ TeamGradientWork<T> work) {
  __shared__ Blocks<T> blocks;
  for (int item = blockIdx.x; item < work.chunk_count * work.heads; item += gridDim.x) {
    const int number = item % work.chunk_count, local = item / work.chunk_count;
    blocks.fill(p, work, number, local);
    const kda::ChunkBlock<T>& chunk = blocks.chunk.block();
    const kda::ChunkBackwardBlock<T>& block = blocks.gradients.block();
    kernels::local_value_gradients<T, is_fused>(chunk, block,
                                                kernels::ChunkBackwardWork<T>(chunk, block.scratch));
    KeptStages<T>{work, work.chunks[number], local}.rows(Stage::dv_local, block.dv_local, work.value_stride,
                                                         p.V);
  }
}

/// F8, F9, F11 forwards, or B2 backwards: neither needs the other. A team head after head of sequences.
template <class T, bool is_fused>
__global__ void __launch_bounds__(state_threads_of_team)
    states_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ TeamGradientWork<T> work) {
  __shared__ Blocks<T> blocks;
  kda::ChunkBlock<T>& chunk = blocks.chunk.block();
  kda::ChunkBackwardBlock<T>& block = blocks.gradients.block();
  const std::size_t size = std::size_t(p.K) * work.value_stride;
  const int count = work.sequence_count * work.heads;
  for (int item = blockIdx.x; item < 2 * count; item += gridDim.x) {
    const int local = item % count / work.sequence_count, sequence = item % work.sequence_count;
    const int first = static_cast<int>(work.chunks_of[sequence].first),
              end = first + static_cast<int>(work.chunks_of[sequence].count);
    const std::size_t state = work.state_of(local, sequence) * size;
    for (int number = first; item < count && number < end; ++number) {
      blocks.fill(p, work, number, local);
      T* const entering = work.entering + work.matrix_of(local, number, p);
      if (threadIdx.x == 0) chunk.state = work.state + state, chunk.scratch = block.scratch;
      __syncthreads();
      copy(chunk.state, size, entering);
      const kernels::ChunkWork<T> scratch(chunk);
      kernels::read_state<T, is_fused>(chunk, scratch);
      kernels::write_state<T, is_fused>(chunk, scratch);
    }
    for (int number = end; item >= count && number-- > first;) {
      blocks.fill(p, work, number, local);
      T *const gradient = work.gradient + state, *const leaving = block.state_gradient;
      copy(gradient, size, leaving);
      if (threadIdx.x == 0) block.state_gradient = gradient;
      __syncthreads();
      kernels::read_state_gradient(chunk, block);
      kernels::state_gradients<T, is_fused>(chunk, block, blocks.scratch());
      const KeptStages<T> kept{work, work.chunks[number], local};
      kept.state(Stage::dh, block.dh, number, p);
      kept.rows(Stage::dv, block.dv, work.value_stride, p.V);
    }
  }
}

/// The rest of B1, B3, B4 and B5, a team chunk after chunk.
template <class T, bool is_fused>
__global__ void __launch_bounds__(team_threads)
    gradients_kernel(const __grid_constant__ DeviceProblem p,
                     const __grid_constant__ TeamGradientWork<T> work) {
  __shared__ Blocks<T> blocks;
  const kda::ChunkBlock<T>& chunk = blocks.chunk.block();
  const kda::ChunkBackwardBlock<T>& block = blocks.gradients.block();
  for (int item = blockIdx.x; item < work.chunk_count * work.heads; item += gridDim.x) {
    const int number = item % work.chunk_count, local = item / work.chunk_count;
    blocks.fill(p, work, number, local);
    const kernels::ChunkBackwardWork<T> scratch = blocks.scratch();
    kernels::rounded_copy(p.casts.state, block.entering_state, std::size_t(p.K) * work.value_stride, chunk.h);
    kernels::read_state_gradient(chunk, block);
    kernels::score_gradients<T, is_fused>(chunk, block, scratch);
    kernels::state_products(chunk, block, scratch);
    kernels::inter_gradients<T, is_fused>(chunk, block, scratch);
    kernels::inverse_gradients<T, is_fused>(chunk, block, scratch);
    kernels::gate_gradients<T, is_fused>(chunk, block, scratch);
    kernels::add_intra_gradients<T, is_fused>(chunk, block, scratch);
    cumulate_from_the_end(work.operations.reduction, block.dG, chunk.rows, work.key_stride);
    const KeptStages<T> kept{work, work.chunks[number], local};
    kept.triangle(Stage::dAqk, block.dAqk), kept.triangle(Stage::dAkk, block.dAkk);
    kept.rows(Stage::dw, block.dw, work.key_stride, p.K);
  }
}

template <class T>
int chunk_teams(const TeamGradientWork<T>& work) {
  return std::min(work.teams, work.chunk_count * work.heads);
}

}  // namespace

template <class T>
void launch_team_local_gradients(cudaStream_t stream, const DeviceProblem& p,
                                 const TeamGradientWork<T>& work) {
  launch_on(stream, "chunks, dv_local",
            work.operations.is_fused ? local_kernel<T, true> : local_kernel<T, false>,
            dim3(chunk_teams(work)), team_threads, 0, p, work);
}
template <class T>
void launch_team_state_gradients(cudaStream_t stream, const DeviceProblem& p,
                                 const TeamGradientWork<T>& work) {
  launch_on(stream, "chunks, gradients of states",
            work.operations.is_fused ? states_kernel<T, true> : states_kernel<T, false>,
            dim3(std::min(work.teams, 2 * work.sequence_count * work.heads)), state_threads_of_team, 0, p,
            work);
}
template <class T>
void launch_team_chunk_gradients(cudaStream_t stream, const DeviceProblem& p,
                                 const TeamGradientWork<T>& work) {
  launch_on(stream, "chunks, gradients",
            work.operations.is_fused ? gradients_kernel<T, true> : gradients_kernel<T, false>,
            dim3(chunk_teams(work)), team_threads, 0, p, work);
}

#define KDA_CHECK_INSTANTIATE(T)                                                                             \
  template void launch_team_local_gradients(cudaStream_t, const DeviceProblem&, const TeamGradientWork<T>&); \
  template void launch_team_state_gradients(cudaStream_t, const DeviceProblem&, const TeamGradientWork<T>&); \
  template void launch_team_chunk_gradients(cudaStream_t, const DeviceProblem&, const TeamGradientWork<T>&);
KDA_CHECK_INSTANTIATE(float)
KDA_CHECK_INSTANTIATE(double)
#undef KDA_CHECK_INSTANTIATE

}  // namespace kda_check::cuda
