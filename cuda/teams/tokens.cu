// The recurrence: a thread for each column of a head's state, which it has in registers
// where there is such a kernel, else in shared memory.
#include "cuda/teams/registers.cuh"

namespace kda_check::cuda {

namespace {

using Tokens = kda::TokenBlock<float>;
__global__ void __launch_bounds__(token_threads)
    tokens_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ TeamWork<float> work) {
  extern __shared__ __align__(16) float state[];  // [K][token_threads]
  __shared__ BlockMemory<Tokens> memory;
  Tokens& block = memory.block();
  const int tiles = (p.V + token_threads - 1) / token_threads, local = blockIdx.y,
            sequence = blockIdx.x / tiles, first = blockIdx.x % tiles * token_threads,
            columns = min(token_threads, p.V - first);
  float* const stored = work.state + work.state_of(local, sequence) * p.K * work.value_stride + first;
  if (threadIdx.x == 0) {
    const TokenRange tokens = work.sequences[sequence];
    const std::size_t row = work.token_of(local, tokens.first), keys = row * work.key_stride,
                      values = row * work.value_stride + first;
    block = {};
    block.tokens = tokens.count, block.key_dim = p.K, block.columns = columns;
    block.value_stride = work.value_stride, block.state_stride = token_threads;
    block.q = work.q + keys, block.k = work.k + keys, block.decay = work.g + keys;
    block.beta = work.beta + row, block.v = work.v + values, block.o = work.o + values;
    block.state = state;
    block.operations = work.operations, block.casts = p.casts;
  }
  kernels::each(p.K, columns, [&](std::size_t k, std::size_t v) {
    state[k * token_threads + v] = stored[k * work.value_stride + v];
  });
  kernels::token_block(block);
  kernels::each(p.K, columns, [&](std::size_t k, std::size_t v) {
    stored[k * work.value_stride + v] = state[k * token_threads + v];
  });
}

}  // namespace

void launch_team_tokens(cudaStream_t stream, const DeviceProblem& p, const TeamWork<float>& work) {
  const int tiles = (p.V + token_threads - 1) / token_threads;
  const dim3 grid(tiles * work.sequence_count, work.heads);
  if (const TokensKernel in_registers = register_tokens(p, work))
    launch_on(stream, "tokens", in_registers, grid, token_threads, 0, p, work);
  else
    launch_on(stream, "tokens", tokens_kernel, grid, token_threads,
              sizeof(float) * token_threads * static_cast<std::size_t>(p.K), p, work);
}

}  // namespace kda_check::cuda
