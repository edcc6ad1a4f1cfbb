// The chunk form: sums of gates, then all that needs no state for many chunks side by side, then from chunk
// to chunk.
#include <algorithm>

#include "cuda/teams/chunk.cuh"

namespace kda_check::cuda {

namespace {

using kda::Stage;

/// F1, a team for each chunk of a head.
template <class T>
__global__ void __launch_bounds__(128)
    cumulate_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ TeamWork<T> work) {
  const TokenRange chunk = work.chunks[blockIdx.x];
  const int local = static_cast<int>(blockIdx.y);
  const std::size_t stride = work.key_stride, rows = chunk.count,
                    first = work.token_of(local, chunk.first) * stride;
  T *const G = work.g + first, *const tail = work.tail + first;
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
  KeptStages<T>{work, chunk, local}.rows(Stage::g_cumsum, G, stride, p.K);
}

/// F2 to F7: a team takes chunk after chunk.
template <class T, bool is_fused>
__global__ void __launch_bounds__(team_threads, 2)
    chunks_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ TeamWork<T> work) {
  __shared__ BlockMemory<kda::ChunkBlock<T>> memory;
  kda::ChunkBlock<T>& block = memory.block();
  for (int item = blockIdx.x; item < work.chunk_count * work.heads; item += gridDim.x) {
    const TokenRange chunk = work.chunks[item % work.chunk_count];
    const int local = item / work.chunk_count;
    __syncthreads();  // the last one is done with `block`
    if (threadIdx.x == 0) {
      fill_block(p, work, chunk, local, block);
      block.scratch = work.scratch + blockIdx.x * work.scratch_elements;
    }
    __syncthreads();
    const kernels::ChunkWork<T> scratch(block);
    kernels::scores_and_inverse<T, is_fused>(block, scratch);
    kernels::operands<T, is_fused>(block, scratch);
    const KeptStages<T> kept{work, chunk, local};
    kept.triangle(Stage::Aqk, block.Aqk), kept.triangle(Stage::Akk_inv, block.Akk_inv);
    kept.rows(Stage::u, block.u, work.value_stride, p.V);
    kept.rows(Stage::w, block.w, work.key_stride, p.K);
    kept.rows(Stage::qg, block.qg, work.key_stride, p.K);
    kept.rows(Stage::kg, block.kg, work.key_stride, p.K);
  }
}

/// F8 to F11: a team takes the heads of sequences, one after the other, each from chunk to chunk.
template <class T, bool is_fused>
__global__ void __launch_bounds__(state_threads_of_team)
    state_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ TeamWork<T> work) {
  __shared__ BlockMemory<kda::ChunkBlock<T>> memory;
  kda::ChunkBlock<T>& block = memory.block();
  for (int item = blockIdx.x; item < work.sequence_count * work.heads; item += gridDim.x) {
    const int local = item / work.sequence_count, sequence = item % work.sequence_count;
    const PieceRange chunks = work.chunks_of[sequence];
    const std::size_t state = work.state_of(local, sequence) * p.K * work.value_stride;
    for (unsigned number = chunks.first; number < chunks.first + chunks.count; ++number) {
      const TokenRange chunk = work.chunks[number];
      __syncthreads();  // the last one is done with `block`
      if (threadIdx.x == 0) {
        fill_block(p, work, chunk, local, block);
        block.scratch = work.scratch + blockIdx.x * work.scratch_elements;
        block.state = work.state + state, block.h = work.h + state;
      }
      __syncthreads();
      kernels::through_state<T, is_fused>(block, kernels::ChunkWork<T>(block));
      const KeptStages<T> kept{work, chunk, local};
      kept.state(Stage::h, block.h, static_cast<int>(number), p);
      kept.rows(Stage::v_new, block.v_new, work.value_stride, p.V);
    }
  }
}

}  // namespace

template <class T>
void launch_team_operands(cudaStream_t stream, const DeviceProblem& p, const TeamWork<T>& work) {
  launch_on(stream, "chunks, sums of gates", cumulate_kernel<T>, dim3(work.chunk_count, work.heads), 128, 0,
            p, work);
  launch_on(stream, "chunks", work.operations.is_fused ? chunks_kernel<T, true> : chunks_kernel<T, false>,
            dim3(std::min(work.teams, work.chunk_count * work.heads)), team_threads, 0, p, work);
}

template <class T>
void launch_team_states(cudaStream_t stream, const DeviceProblem& p, const TeamWork<T>& work) {
  launch_on(stream, "chunks, states",
            work.operations.is_fused ? state_kernel<T, true> : state_kernel<T, false>,
            dim3(std::min(work.teams, work.sequence_count * work.heads)), state_threads_of_team, 0, p, work);
}

template void launch_team_operands(cudaStream_t, const DeviceProblem&, const TeamWork<float>&);
template void launch_team_operands(cudaStream_t, const DeviceProblem&, const TeamWork<double>&);
template void launch_team_states(cudaStream_t, const DeviceProblem&, const TeamWork<float>&);
template void launch_team_states(cudaStream_t, const DeviceProblem&, const TeamWork<double>&);

}  // namespace kda_check::cuda
