// q and k normalised, beta, and the running sums of the gates (F1).
#include "chunk.cuh"

namespace kda_check::cuda {

namespace {

constexpr int row_warps = 8;
constexpr int lane_rows = 8;  ///< channels of a lane: K <= 256
constexpr int gate_threads = 128;

/// A warp for each row of q and of k: sums of squares in the order tree:32.
template <class T, bool is_fused>
__global__ void normalise_rows(const __grid_constant__ DeviceProblem p,
                               const __grid_constant__ ChunkWork<T> work) {
  const int lane = threadIdx.x % warp_lanes;
  const std::size_t row = std::size_t{blockIdx.x} * row_warps + threadIdx.x / warp_lanes;
  if (row >= std::size_t(work.token_count) * p.H) return;
  const Tensor source = blockIdx.y == 0 ? p.q : p.k;
  T* const target = (blockIdx.y == 0 ? work.q : work.k) + row * p.K;
  T x[lane_rows];
  bool valid[lane_rows];
#pragma unroll
  for (int r = 0; r < lane_rows; ++r) {
    const int k = lane + r * warp_lanes;
    valid[r] = k < p.K;
    x[r] = valid[r] ? load<T>(source, row * p.K + k) : T(0);
  }
  if (p.qk_l2norm) {
    const T reciprocal = T(1) / warp_norm<is_fused>(x, valid, p.K);
#pragma unroll
    for (int r = 0; r < lane_rows; ++r) x[r] = kda::rounded(p.casts.normalised, x[r] * reciprocal);
  }
#pragma unroll
  for (int r = 0; r < lane_rows; ++r)
    if (valid[r]) target[lane + r * warp_lanes] = x[r];
}

template <class T>
__device__ T gate_of(const DeviceProblem& p, const ChunkPlace<T>& chunk, int i, int k, T amplitude) {
  const T stored = load<T>(p.g, p.at(chunk.token + i, p.HV, chunk.head) * p.K + k);
  return log_decay(p, stored, chunk.head, k, amplitude);
}

/// A thread for each channel of a chunk: G_i = G_i-1 + g_i; from the end, tail_i = tail_i+1 + g_i+1.
template <class T>
__global__ void cumulate_gates(const __grid_constant__ DeviceProblem p,
                               const __grid_constant__ ChunkWork<T> work) {
  const ChunkPlace<T> chunk(p, work, blockIdx.x, blockIdx.y);
  const T amplitude = gate_amplitude<T>(p, chunk.head);
  for (int k = threadIdx.x; k < p.K; k += gate_threads) {
    T sum = T(0);
#pragma unroll 8
    for (int i = 0; i < chunk.rows; ++i) {
      const T g = gate_of<T>(p, chunk, i, k, amplitude);
      sum = i == 0 ? g : sum + g;
      chunk.row(work.G, i, p.HV, chunk.head, p.K)[k] = kda::rounded(p.casts.g_cumsum, sum);
    }
    if (work.tail == nullptr) continue;
    const int last = chunk.rows - 1;
    chunk.row(work.tail, last, p.HV, chunk.head, p.K)[k] = T(0);
#pragma unroll 8
    for (int i = last; i > 0; --i) {
      const T g = gate_of<T>(p, chunk, i, k, amplitude);
      sum = i == last ? g : sum + g;
      chunk.row(work.tail, i - 1, p.HV, chunk.head, p.K)[k] = kda::rounded(p.casts.g_cumsum, sum);
    }
  }
  for (int i = threadIdx.x; i < chunk.rows; i += gate_threads)
    *chunk.row(work.beta, i, p.HV, chunk.head, 1) =
        write_strength(p, load<T>(p.beta, p.at(chunk.token + i, p.HV, chunk.head)));
}

}  // namespace

template <class T>
void launch_chunk_prepare(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work) {
  const std::size_t rows = std::size_t(work.token_count) * p.H;
  const dim3 grid(static_cast<unsigned>((rows + row_warps - 1) / row_warps), 2);
  launch("gpu-chunk, norms", is_fused ? normalise_rows<T, true> : normalise_rows<T, false>, grid,
         row_warps * warp_lanes, 0, p, work);
  launch("gpu-chunk, gates", cumulate_gates<T>, dim3(work.chunk_count, p.HV), gate_threads, 0, p, work);
}

template void launch_chunk_prepare(bool, const DeviceProblem&, const ChunkWork<float>&);
template void launch_chunk_prepare(bool, const DeviceProblem&, const ChunkWork<double>&);

}  // namespace kda_check::cuda
