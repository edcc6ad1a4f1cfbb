// The emulation of the chunk form backwards, after F1 to F7: what a chunk has for itself, the states from
// chunk to chunk, their gradients from the last chunk to the first, then all that is left for many chunks
// side by side.
#include <algorithm>

#include "cuda/spread/backward.cuh"
#include "cuda/spread/chunk.cuh"
#include "kda/kernels/chunk/chunk_backward.hpp"

namespace kda_check::cuda {

namespace {

using Block = kda::ChunkBlock<float>;
using GradientBlock = kda::ChunkBackwardBlock<float>;

/// A chunk of a head with its gradients, for one thread to fill; h and what nobody reads later are in the
/// scratch memory of the team.
__device__ void fill_blocks(const DeviceProblem& p, const GradientWork& work, int number, int local,
                            Block& chunk, GradientBlock& block) {
  const TokenRange tokens = work.chunks[number];
  fill_block(p, work, tokens, local, chunk);
  const std::size_t row = work.token_of(local, tokens.first), keys = row * work.key_stride,
                    values = row * work.value_stride, matrix = work.matrix_of(local, number, p);
  const GradientScratch sizes(work.C, p.K, p.V, work.key_stride, work.value_stride);
  float* scratch = work.scratch + blockIdx.x * work.scratch_elements;
  const auto take = [&scratch](std::size_t count) {
    float* const memory = scratch;
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
  block.dbeta = work.dbeta + row;
}

/// What every kernel here has in shared memory.
struct Blocks {
  BlockMemory<Block> chunk;
  BlockMemory<GradientBlock> gradients;

  /// For all threads of a team, which may still read what was there before.
  __device__ void fill(const DeviceProblem& p, const GradientWork& work, int number, int local) {
    __syncthreads();
    if (threadIdx.x == 0) fill_blocks(p, work, number, local, chunk.block(), gradients.block());
    __syncthreads();
  }
  /// `do` was rounded when it was read.
  __device__ kernels::ChunkBackwardWork<float> scratch(const GradientWork& work, int number, int local) {
    kernels::ChunkBackwardWork<float> scratch(chunk.block(), gradients.block().scratch);
    scratch.d_o = work.d_o + work.token_of(local, work.chunks[number].first) * work.value_stride;
    return scratch;
  }
};

__device__ void copy(const float* from, std::size_t count, float* to) {
  kernels::each(count, [=](std::size_t e) { to[e] = from[e]; });
}

/// dv_local of B1, a team chunk after chunk.
template <bool is_fused>
__global__ void __launch_bounds__(team_threads)
    local_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ GradientWork work) {
  __shared__ Blocks blocks;
  for (int item = blockIdx.x; item < work.chunk_count * work.heads; item += gridDim.x) {
    const int number = item % work.chunk_count;
    blocks.fill(p, work, number, item / work.chunk_count);
    Block& chunk = blocks.chunk.block();
    GradientBlock& block = blocks.gradients.block();
    kernels::local_value_gradients<float, is_fused>(chunk, block,
                                                    kernels::ChunkBackwardWork<float>(chunk, block.scratch));
  }
}

/// F8, F9, F11 and then B2, a team head after head of sequences.
template <bool is_fused>
__global__ void __launch_bounds__(state_threads_of_team)
    states_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ GradientWork work) {
  __shared__ Blocks blocks;
  Block& chunk = blocks.chunk.block();
  GradientBlock& block = blocks.gradients.block();
  const std::size_t size = std::size_t(p.K) * work.value_stride;
  for (int item = blockIdx.x; item < work.sequence_count * work.heads; item += gridDim.x) {
    const int local = item / work.sequence_count, sequence = item % work.sequence_count;
    const int first = static_cast<int>(work.chunks_of[sequence].first),
              end = first + static_cast<int>(work.chunks_of[sequence].count);
    const std::size_t state = work.state_of(local, sequence) * size;
    for (int number = first; number < end; ++number) {
      blocks.fill(p, work, number, local);
      float* const entering = work.entering + work.matrix_of(local, number, p);
      if (threadIdx.x == 0) chunk.state = work.state + state, chunk.scratch = block.scratch;
      __syncthreads();
      copy(chunk.state, size, entering);
      const kernels::ChunkWork<float> scratch(chunk);
      kernels::read_state<float, is_fused>(chunk, scratch);
      kernels::write_state<float, is_fused>(chunk, scratch);
    }
    for (int number = end; number-- > first;) {
      blocks.fill(p, work, number, local);
      float *const gradient = work.gradient + state, *const leaving = block.state_gradient;
      copy(gradient, size, leaving);
      if (threadIdx.x == 0) block.state_gradient = gradient;
      __syncthreads();
      kernels::read_state_gradient(chunk, block);
      kernels::state_gradients<float, is_fused>(chunk, block, blocks.scratch(work, number, local));
    }
  }
}

/// The rest of B1, B3, B4 and B5, a team chunk after chunk.
template <bool is_fused>
__global__ void __launch_bounds__(team_threads)
    gradients_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ GradientWork work) {
  __shared__ Blocks blocks;
  Block& chunk = blocks.chunk.block();
  GradientBlock& block = blocks.gradients.block();
  for (int item = blockIdx.x; item < work.chunk_count * work.heads; item += gridDim.x) {
    const int number = item % work.chunk_count, local = item / work.chunk_count;
    blocks.fill(p, work, number, local);
    const kernels::ChunkBackwardWork<float> scratch = blocks.scratch(work, number, local);
    kernels::rounded_copy(p.casts.state, block.entering_state, std::size_t(p.K) * work.value_stride, chunk.h);
    kernels::read_state_gradient(chunk, block);
    kernels::score_gradients<float, is_fused>(chunk, block, scratch);
    kernels::state_products(chunk, block, scratch);
    kernels::inter_gradients<float, is_fused>(chunk, block, scratch);
    kernels::inverse_gradients<float, is_fused>(chunk, block, scratch);
    kernels::gate_gradients<float, is_fused>(chunk, block, scratch);
    kernels::add_intra_gradients<float, is_fused>(chunk, block, scratch);
    cumulate_from_the_end(work.operations.reduction, block.dG, chunk.rows, work.key_stride);
  }
}

}  // namespace

void launch_emulation_chunk_backward(cudaStream_t stream, bool is_fused, const DeviceProblem& p,
                                     const GradientWork& work) {
  launch_emulation_operands(stream, is_fused, p, work);
  launch_on(stream, "emulation, dv_local", is_fused ? local_kernel<true> : local_kernel<false>,
            dim3(work.teams), team_threads, 0, p, work);
  launch_on(stream, "emulation, gradients of states", is_fused ? states_kernel<true> : states_kernel<false>,
            dim3(std::min(work.teams, work.sequence_count * work.heads)), state_threads_of_team, 0, p, work);
  launch_on(stream, "emulation, gradients of chunks",
            is_fused ? gradients_kernel<true> : gradients_kernel<false>, dim3(work.teams), team_threads, 0, p,
            work);
}

}  // namespace kda_check::cuda
