// The emulation of the chunk form: sums of gates, then all that needs no state for many chunks side by side,
// then from chunk to chunk.
#include <algorithm>

#include "cuda/spread/chunk.cuh"

namespace kda_check::cuda {

namespace {

using Block = kda::ChunkBlock<float>;

/// F1, a team for each chunk of a head.
__global__ void __launch_bounds__(128)
    cumulate_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ EmulationWork work) {
  const TokenRange chunk = work.chunks[blockIdx.x];
  const std::size_t stride = work.key_stride, rows = chunk.count,
                    first = work.token_of(blockIdx.y, chunk.first) * stride;
  float *const G = work.g + first, *const tail = work.tail + first;
  const kda::Reduction reduction = work.operations.reduction;
  if (work.tail_form == kda::TailForm::suffix) {
    kernels::each(rows - 1, stride,
                  [=](std::size_t i, std::size_t k) { tail[i * stride + k] = G[(i + 1) * stride + k]; });
    cumulate_from_the_end(reduction, tail, rows - 1, stride);
    kernels::each(stride, [=](std::size_t k) { tail[(rows - 1) * stride + k] = 0; });
    kernels::round_array(p.casts.g_cumsum, tail, rows * stride);
  }
  kernels::cumulate(reduction, G, rows, stride);
  kernels::round_array(p.casts.g_cumsum, G, rows * stride);
}

/// F2 to F7: a team takes chunk after chunk.
template <bool is_fused>
__global__ void __launch_bounds__(team_threads, 2)
    chunks_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ EmulationWork work) {
  __shared__ BlockMemory<Block> memory;
  Block& block = memory.block();
  for (int item = blockIdx.x; item < work.chunk_count * work.heads; item += gridDim.x) {
    __syncthreads();  // the last one is done with `block`
    if (threadIdx.x == 0) {
      fill_block(p, work, work.chunks[item % work.chunk_count], item / work.chunk_count, block);
      block.scratch = work.scratch + blockIdx.x * work.scratch_elements;
    }
    __syncthreads();
    const kernels::ChunkWork<float> scratch(block);
    kernels::scores_and_inverse<float, is_fused>(block, scratch);
    kernels::operands<float, is_fused>(block, scratch);
  }
}

/// F8 to F11: a team takes the heads of sequences, one after the other, each from chunk to chunk.
template <bool is_fused>
__global__ void __launch_bounds__(state_threads_of_team)
    state_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ EmulationWork work) {
  __shared__ BlockMemory<Block> memory;
  Block& block = memory.block();
  for (int item = blockIdx.x; item < work.sequence_count * work.heads; item += gridDim.x) {
    const int local = item / work.sequence_count, sequence = item % work.sequence_count;
    const TokenRange tokens = work.sequences[sequence];
    const std::size_t state = work.state_of(local, sequence) * p.K * work.value_stride;
    for (unsigned begin = 0; begin < tokens.count; begin += work.C) {
      __syncthreads();  // the last one is done with `block`
      if (threadIdx.x == 0) {
        fill_block(p, work, {tokens.first + begin, min(unsigned(work.C), tokens.count - begin)}, local,
                   block);
        block.scratch = work.scratch + blockIdx.x * work.scratch_elements;
        block.state = work.state + state, block.h = work.h + state;
      }
      __syncthreads();
      kernels::through_state<float, is_fused>(block, kernels::ChunkWork<float>(block));
    }
  }
}

}  // namespace

void launch_emulation_operands(cudaStream_t stream, bool is_fused, const DeviceProblem& p,
                               const EmulationWork& work) {
  launch_on(stream, "emulation, sums of gates", cumulate_kernel, dim3(work.chunk_count, work.heads), 128, 0,
            p, work);
  launch_on(stream, "emulation, chunks", is_fused ? chunks_kernel<true> : chunks_kernel<false>,
            dim3(work.teams), team_threads, 0, p, work);
}

void launch_emulation_chunk(cudaStream_t stream, bool is_fused, const DeviceProblem& p,
                            const EmulationWork& work) {
  launch_emulation_operands(stream, is_fused, p, work);
  launch_on(stream, "emulation, states", is_fused ? state_kernel<true> : state_kernel<false>,
            dim3(std::min(work.teams, work.sequence_count * work.heads)), state_threads_of_team, 0, p, work);
}

}  // namespace kda_check::cuda
