// The emulation of the chunk form: sums of gates, then all that needs no state for many chunks side by side,
// then from chunk to chunk.
#include <algorithm>

#include "emulation.cuh"
#include "kda/kernels/cumulate.hpp"

namespace kda_check::cuda {

namespace {

using Block = kda::ChunkBlock<float>;
/// What is in shared memory must have no constructor.
struct alignas(16) BlockMemory {
  unsigned char bytes[sizeof(Block)];
};

/// One chunk of one head.
__device__ void fill_block(const DeviceProblem& p, const EmulationWork& work, TokenRange chunk, int local,
                           Block& block) {
  const std::size_t row = work.token_of(local, chunk.first), keys = row * work.key_stride,
                    values = row * work.value_stride, scores = row * work.C;
  block = {};
  block.rows = chunk.count;
  block.key_dim = p.K, block.value_dim = p.V;
  block.key_stride = work.key_stride, block.value_stride = work.value_stride, block.score_stride = work.C;
  block.operations = work.operations;
  block.decay = work.decay, block.anchor_rows = work.anchor_rows, block.clamp = work.clamp;
  block.inverse = work.inverse, block.inverse_rows = work.inverse_rows;
  block.casts = p.casts;
  block.scale = static_cast<float>(p.scale);
  block.q = work.q + keys, block.k = block.read = work.k + keys, block.v = work.v + values,
  block.beta = work.beta + row;
  block.G = work.g + keys;
  block.tail = work.tail_form == kda::TailForm::suffix ? work.tail + keys : nullptr;
  block.Aqk = work.Aqk + scores, block.L = work.L + scores, block.Akk_inv = work.Akk_inv + scores;
  block.w = work.w + keys, block.qg = work.qg + keys, block.kg = work.kg + keys;
  block.u = work.u + values, block.v_new = work.v_new + values, block.o = work.o + values;
}

/// F1, a team for each chunk of a head.
__global__ void __launch_bounds__(128)
    cumulate_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ EmulationWork work) {
  const TokenRange chunk = work.chunks[blockIdx.x];
  const std::size_t stride = work.key_stride, rows = chunk.count,
                    first = work.token_of(blockIdx.y, chunk.first) * stride;
  float *const G = work.g + first, *const tail = work.tail + first;
  const kda::Reduction reduction = work.operations.reduction;
  if (work.tail_form == kda::TailForm::suffix) {
    // From the end: the order of a sum from the start, of the rows turned round.
    kernels::each(rows - 1, stride, [=](std::size_t i, std::size_t k) {
      tail[i * stride + k] = G[(rows - 1 - i) * stride + k];
    });
    kernels::cumulate(reduction, tail, rows - 1, stride);
    kernels::each((rows - 1) / 2, stride, [=](std::size_t i, std::size_t k) {
      float &a = tail[i * stride + k], &b = tail[(rows - 2 - i) * stride + k];
      const float x = a;
      a = b, b = x;
    });
    kernels::each(stride, [=](std::size_t k) { tail[(rows - 1) * stride + k] = 0; });
    kernels::round_array(p.casts.g_cumsum, tail, rows * stride);
  }
  kernels::cumulate(reduction, G, rows, stride);
  kernels::round_array(p.casts.g_cumsum, G, rows * stride);
}

/// F2 to F7: a team takes chunk after chunk.
template <bool is_fused>
__global__ void __launch_bounds__(team_threads)
    chunks_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ EmulationWork work) {
  __shared__ BlockMemory memory;
  Block& block = *reinterpret_cast<Block*>(&memory);
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
  __shared__ BlockMemory memory;
  Block& block = *reinterpret_cast<Block*>(&memory);
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

void launch_emulation_chunk(cudaStream_t stream, bool is_fused, const DeviceProblem& p,
                            const EmulationWork& work) {
  launch_on(stream, "emulation, sums of gates", cumulate_kernel, dim3(work.chunk_count, work.heads), 128, 0,
            p, work);
  launch_on(stream, "emulation, chunks", is_fused ? chunks_kernel<true> : chunks_kernel<false>,
            dim3(work.teams), team_threads, 0, p, work);
  launch_on(stream, "emulation, states", is_fused ? state_kernel<true> : state_kernel<false>,
            dim3(std::min(work.teams, work.sequence_count * work.heads)), state_threads_of_team, 0, p, work);
}

}  // namespace kda_check::cuda
