// dw = -dv h^T of a chunk of a head on tensor cores (B3 of docs/kda.md, "Chunk backward"), for those who ask
// for stages: the pass has no use for it. A block a chunk, a warp a block of 16 x 16.
#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/variants/tensor_cores/inputs.cuh"
#include "cuda/variants/tensor_cores/split/backward.cuh"

namespace kda_check::cuda {

namespace {

using numeric::DType;

constexpr int dw_warps = 8, dw_threads = dw_warps * warp_lanes;

#ifdef KDA_CHECK_SM90

/// product(first row, first channel) of the blocks that a warp has.
template <int width, class Work, class Product>
__device__ void each_block_of_dw(const DeviceProblem& p, const Work& work, const ChunkOfHead& chunk,
                                 Product product) {
  constexpr int groups = width / 16;
  const int warp = static_cast<int>(threadIdx.x) / warp_lanes, lane = threadIdx.x % warp_lanes;
  for (int block = warp; block < blocks_of_chunk * groups; block += dw_warps) {
    const int top = block / groups * 16, left = block % groups * 16;
    if (top >= chunk.rows) break;
    BlockProduct sum{};
    product(top, left, lane, sum);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = top + lane / 4 + e / 2 * 8, k = left + 8 * n + 2 * (lane % 4) + e % 2;
        if (row < chunk.rows && k < p.K)
          work.gradient_stages.dw[work.row(chunk.token + row, chunk.local) * p.K + k] = -sum[n][e];
      }
  }
}

/// Numbers of two neighbouring rows of an array of rows of `columns`, as a word.
template <int columns>
__device__ std::uint32_t two_rows(const std::uint16_t* array, int row, int column) {
  using Image = ChunkImage<columns>;
  return array[Image::template at<columns>(row, column)] |
         std::uint32_t{array[Image::template at<columns>(row + 1, column)]} << 16;
}

#endif

template <DType dtype, int width>
__global__ void __launch_bounds__(dw_threads)
    dw_of_chunk(const __grid_constant__ DeviceProblem p,
                const __grid_constant__ TensorCoreBackwardWork work) {
#ifdef KDA_CHECK_SM90
  const ChunkOfHead chunk(work);
  const std::uint16_t *const h = work.left.h + work.image(chunk.chunk, chunk.local, state_image(p.V, width)),
                             *const dv = work.dv + work.image(chunk.chunk, chunk.local, value_image(p.V));
  each_block_of_dw<width>(p, work, chunk, [&](int top, int left, int lane, BlockProduct& sum) {
    const int row = top + lane / 4, channel = left + lane / 4;
    for (int first = 0; first < value_rows(p.V); first += 16) {
      const int v = first + 2 * (lane % 4);
      const std::uint32_t a[] = {two_rows<image_rows>(dv, v, row), two_rows<image_rows>(dv, v, row + 8),
                                 two_rows<image_rows>(dv, v + 8, row),
                                 two_rows<image_rows>(dv, v + 8, row + 8)};
#pragma unroll
      for (int n = 0; n < 2; ++n)
        multiply_16<dtype>(sum[n], a, two_rows<width>(h, v, channel + 8 * n),
                           two_rows<width>(h, v + 8, channel + 8 * n));
    }
  });
#endif
}

template <int width>
__global__ void __launch_bounds__(dw_threads)
    split_dw_of_chunk(const __grid_constant__ DeviceProblem p,
                      const __grid_constant__ SplitBackwardWork work) {
#ifdef KDA_CHECK_SM90
  const ChunkOfHead chunk(work);
  const int columns = value_blocks(p.V);
  each_block_of_dw<width>(p, work, chunk, [&](int top, int left, int lane, BlockProduct& sum) {
    const float *const dv = work.dv + work.place(chunk.chunk, chunk.local, value_numbers(p.V)) +
                            top / 16 * columns * numbers_of_block,
                       *const h = work.split.h +
                                  work.place(chunk.chunk, chunk.local, state_numbers(p.V, width)) +
                                  left / 16 * columns * numbers_of_block;
    SplitSums<2> sums;
    for (int c = 0; c < columns; ++c) {
      const float *const rows = dv + c * numbers_of_block, *const channels = h + c * numbers_of_block;
      SplitLeftFactor a;
      as_left(load_half(rows, 0, lane), load_half(rows, 1, lane), a);
      SplitRightFactor b;
      as_right(load_half(channels, 0, lane), b[0]), as_right(load_half(channels, 1, lane), b[1]);
      sums.add<false, 0>(a, b);
    }
    sums.finish(sum);
  });
#endif
}

/// Launches a kernel with a block for each chunk of a head.
template <class Kernel, class Work>
void launch_dw(const char* name, Kernel kernel, const DeviceProblem& p, const Work& work) {
  launch(name, kernel, dim3(static_cast<unsigned>(work.chunk_count) * static_cast<unsigned>(work.heads)),
         dw_threads, 0, p, work);
}

}  // namespace

void launch_tensor_core_dw(const DeviceProblem& p, const TensorCoreBackwardWork& work) {
  for_operands<narrow_tensor_core_key>(p.q.dtype, p.K, [&](auto dtype, auto width) {
    launch_dw("gpu-chunk backwards on tensor cores, dw", dw_of_chunk<dtype, width>, p, work);
  });
}
void launch_split_dw(const DeviceProblem& p, const SplitBackwardWork& work) {
  for_width<narrow_tensor_core_key>(p.K, [&](auto width) {
    launch_dw("gpu-chunk backwards on tensor cores in fp32, dw", split_dw_of_chunk<width>, p, work);
  });
}

}  // namespace kda_check::cuda
