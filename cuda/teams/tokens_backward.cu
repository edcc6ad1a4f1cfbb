// The recurrence backwards: a thread for each column of a head's state, and then for each of
// its rows (kda/kernels/token/token_backward.hpp).
#include "cuda/teams/gradient_work.cuh"
#include "kda/kernels/token/token_backward.hpp"

namespace kda_check::cuda {

namespace {

using Columns = kda::ColumnsBlock<float>;
using Rows = kda::RowsBlock<float>;

/// A tile of a state of one sequence of one head.
struct Tile {
  int tile, sequence, local;

  __device__ explicit Tile(int tiles)
      : tile(static_cast<int>(blockIdx.x) % tiles),
        sequence(static_cast<int>(blockIdx.x) / tiles),
        local(static_cast<int>(blockIdx.y)) {}
  __device__ int first() const { return tile * tile_columns; }
};

/// Forwards (blockIdx.z == 0) the errors, with checkpoints; backwards the gradients of the predictions.
/// Neither needs the other.
__global__ void __launch_bounds__(tile_columns)
    error_columns_kernel(const __grid_constant__ DeviceProblem p,
                         const __grid_constant__ TeamGradientWork<float> work) {
  extern __shared__ __align__(16) float state[];  // [K][tile_columns]
  __shared__ BlockMemory<Columns> memory;
  Columns& block = memory.block();
  const bool is_forward = blockIdx.z == 0;
  const Tile at(work.value_stride / tile_columns);
  const std::size_t stride = work.value_stride;
  float* const stored = (is_forward ? work.state : work.gradient) +
                        work.state_of(at.local, at.sequence) * p.K * stride + at.first();
  const auto take_state = [&](float* to) {
    kernels::each(p.K, tile_columns,
                  [&](std::size_t k, std::size_t v) { to[k * stride + v] = state[k * tile_columns + v]; });
  };
  kernels::each(p.K, tile_columns,
                [&](std::size_t k, std::size_t v) { state[k * tile_columns + v] = stored[k * stride + v]; });
  const int first = static_cast<int>(work.chunks_of[at.sequence].first),
            count = static_cast<int>(work.chunks_of[at.sequence].count);
  for (int i = 0; i < count; ++i) {
    const int number = first + (is_forward ? i : count - 1 - i);
    if (is_forward) take_state(work.entering + work.matrix_of(at.local, number, p) + at.first());
    if (threadIdx.x == 0) {
      const TokenRange tokens = work.chunks[number];
      const std::size_t row = work.token_of(at.local, tokens.first), keys = row * work.key_stride,
                        values = row * stride + at.first();
      block = {};
      block.tokens = tokens.count, block.key_dim = p.K;
      block.key_stride = work.key_stride, block.value_stride = stride;
      block.q = work.q + keys, block.k = work.k + keys, block.decay = work.g + keys;
      block.beta = work.beta + row;
      block.rows = (is_forward ? work.v : work.d_o) + values;
      block.sums = (is_forward ? work.error : work.dv) + values;
      block.state = state;
      block.operations = work.operations, block.casts = p.casts;
    }
    __syncthreads();
    if (is_forward)
      kernels::replay_block<float, tile_columns>(block);
    else
      kernels::column_gradients_block<float, tile_columns>(block);
  }
  if (!is_forward) take_state(stored);
}

/// beta e and beta r.
__global__ void weigh_kernel(const __grid_constant__ TeamGradientWork<float> work) {
  const std::size_t row = std::size_t{blockIdx.y} * work.token_count + blockIdx.x;
  const float beta = work.beta[row];
  for (int v = threadIdx.x; v < work.value_stride; v += blockDim.x) {
    const std::size_t e = row * work.value_stride + v;
    work.write[e] = work.error[e] * beta, work.written[e] = work.dv[e] * beta;
  }
}

/// r . e, a thread a row.
__global__ void strengths_kernel(const __grid_constant__ DeviceProblem p,
                                 const __grid_constant__ TeamGradientWork<float> work) {
  const std::size_t row = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= std::size_t(work.token_count) * work.heads) return;
  const std::size_t values = row * work.value_stride;
  kernels::dot_of_row(kernels::sums_of_rows(work.operations), work.dv + values, work.error + values, p.V,
                      work.dbeta + row);
}

/// dq, dk and dg, from the last piece on: the states within it are computed again.
__global__ void __launch_bounds__(tile_columns)
    rows_kernel(const __grid_constant__ DeviceProblem p,
                const __grid_constant__ TeamGradientWork<float> work) {
  extern __shared__ __align__(16) float memory_of_tiles[];  // [2][V][tile_columns]
  __shared__ BlockMemory<Rows> memory;
  Rows& block = memory.block();
  float *const state = memory_of_tiles, *const gradient = state + p.V * tile_columns;
  const int tiles = work.key_stride / tile_columns;
  const Tile at(tiles);
  const auto in_rows = [&](const auto& element, float* to) {
    kernels::each(p.V, tile_columns, [&](std::size_t v, std::size_t lane) {
      const int k = at.first() + static_cast<int>(lane);
      to[v * tile_columns + lane] = k < p.K ? element(k, static_cast<int>(v)) : 0.0F;
    });
  };
  const std::size_t final_state = std::size_t(at.sequence) * p.HV + work.first_head + at.local;
  in_rows(
      [&](int k, int v) {
        return p.state_gradient.data == nullptr
                   ? 0.0F
                   : load<float>(p.state_gradient, state_element(p, final_state, k, v));
      },
      gradient);
  const int first = static_cast<int>(work.chunks_of[at.sequence].first);
  for (int number = first + static_cast<int>(work.chunks_of[at.sequence].count); number-- > first;) {
    const float* const entering = work.entering + work.matrix_of(at.local, number, p);
    in_rows([&](int k, int v) { return entering[std::size_t(k) * work.value_stride + v]; }, state);
    if (threadIdx.x == 0) {
      const TokenRange tokens = work.chunks[number];
      const std::size_t row = work.token_of(at.local, tokens.first),
                        keys = row * work.key_stride + at.first(), values = row * work.value_stride;
      block = {};
      block.tokens = tokens.count, block.value_dim = p.V;
      block.key_stride = work.key_stride, block.value_stride = work.value_stride;
      block.q = work.q + keys, block.k = work.k + keys, block.decay = work.g + keys;
      block.write = work.write + values, block.prediction_gradient = work.written + values;
      block.output_gradient = work.d_o + values;
      block.dq = work.dq + keys, block.dk = work.dk + keys, block.dg = work.dg + keys;
      block.state = state, block.gradient = gradient;
      block.history = work.history + (work.state_of(at.local, at.sequence) * tiles + at.tile) *
                                         checkpoint_tokens * p.V * tile_columns;
      block.operations = work.operations, block.casts = p.casts;
    }
    __syncthreads();
    kernels::row_gradients_block<float, tile_columns>(block);
  }
}

}  // namespace

void launch_team_tokens_backward(cudaStream_t stream, const DeviceProblem& p,
                                 const TeamGradientWork<float>& work) {
  const int tiles_of_values = work.value_stride / tile_columns,
            tiles_of_keys = work.key_stride / tile_columns;
  const std::size_t tile = sizeof(float) * tile_columns;
  launch_on(stream, "tokens, errors and predictions", error_columns_kernel,
            dim3(tiles_of_values * work.sequence_count, work.heads, 2), tile_columns,
            tile * static_cast<std::size_t>(p.K), p, work);
  launch_on(stream, "tokens, writes", weigh_kernel, dim3(work.token_count, work.heads), 128, 0, work);
  constexpr int row_threads = 64;
  const int rows = work.token_count * work.heads;
  launch_on(stream, "tokens, dbeta", strengths_kernel, dim3((rows + row_threads - 1) / row_threads),
            row_threads, 0, p, work);
  launch_on(stream, "tokens, rows", rows_kernel, dim3(tiles_of_keys * work.sequence_count, work.heads),
            tile_columns, 2 * tile * static_cast<std::size_t>(p.V), p, work);
}

}  // namespace kda_check::cuda
