// q and k normalised, erased keys, beta, and the running sums of the gates (F1).
#include "cuda/problem/gates.cuh"
#include "cuda/variants/chunk/chunk.cuh"

namespace kda_check::cuda {

namespace {

constexpr int row_warps = 8;
constexpr int lane_rows = widest_key / warp_lanes;
constexpr int gate_threads = 128;

/// A warp for each row of q and of k: sums of squares in the order tree:32.
template <class T, bool is_fused>
__global__ void normalise_rows(const __grid_constant__ DeviceProblem p,
                               const __grid_constant__ ChunkWork<T> work) {
  const int lane = threadIdx.x % warp_lanes;
  const std::size_t row = std::size_t{blockIdx.x} * row_warps + threadIdx.x / warp_lanes;
  const int queries = work.heads / work.group;
  if (row >= std::size_t(work.token_count) * queries) return;
  const Tensor source = blockIdx.y == 0 ? p.q : p.k;
  const std::size_t from =
      p.at(row / queries, p.H, work.first_head / work.group + static_cast<int>(row % queries));
  T* const target = (blockIdx.y == 0 ? work.q : work.k) + row * p.K;
  Stored stored[lane_rows] = {};
  const int mine = (p.K - lane + warp_lanes - 1) / warp_lanes;  // channels of this lane
  fetch_stored(source.data, source.dtype, from * p.K + lane, warp_lanes, mine, stored);
  T x[lane_rows];
  values_of(stored, source.dtype, x);
  bool valid[lane_rows];
#pragma unroll
  for (int r = 0; r < lane_rows; ++r) valid[r] = r < mine;
  if (p.qk_l2norm) {
    const T reciprocal = T(1) / warp_norm<is_fused>(x, valid, p.K);
#pragma unroll
    for (int r = 0; r < lane_rows; ++r) x[r] = kda::rounded(p.casts.normalised, x[r] * reciprocal);
  }
#pragma unroll
  for (int r = 0; r < lane_rows; ++r)
    if (valid[r]) target[lane + r * warp_lanes] = x[r];
}

/// The log decays of channel k in rows [first, first + block_rows) of a chunk, as far as there are such rows.
template <class T>
__device__ void gates_of(const DeviceProblem& p, const DeviceChunk<T>& chunk, int first, int k, T amplitude,
                         T (&g)[block_rows]) {
  Stored stored[block_rows] = {};
  const std::size_t row = std::size_t(p.HV) * p.K;
  fetch_stored(p.g.data, p.g.dtype, chunk.stored(p, first) * p.K + k, row, chunk.rows - first, stored);
  values_of(stored, p.g.dtype, g);
  if (p.gate == kda::Gate::none) return;
#pragma unroll
  for (int i = 0; i < block_rows; ++i) g[i] = log_decay(p, g[i], chunk.head, k, amplitude);
}

/// A thread for each channel of a chunk: G_i = G_i-1 + g_i; from the end, tail_i = tail_i+1 + g_i+1.
template <class T>
__global__ void cumulate_gates(const __grid_constant__ DeviceProblem p,
                               const __grid_constant__ ChunkWork<T> work) {
  const DeviceChunk<T> chunk(work, blockIdx.x, blockIdx.y);
  const T amplitude = gate_amplitude<T>(p, chunk.head);
  const int last = chunk.rows - 1;
  for (int k = threadIdx.x; k < p.K; k += gate_threads) {
    T sum = T(0), g[block_rows];
    for (int first = 0; first < chunk.rows; first += block_rows) {
      gates_of(p, chunk, first, k, amplitude, g);
#pragma unroll
      for (int i = 0; i < block_rows; ++i) {
        if (first + i > last) break;
        sum = first + i == 0 ? g[i] : sum + g[i];
        chunk.row(work.G, first + i, p.K)[k] = kda::rounded(p.casts.g_cumsum, sum);
      }
    }
    if (work.tail == nullptr) continue;
    chunk.row(work.tail, last, p.K)[k] = T(0);
    for (int first = last / block_rows * block_rows; first >= 0; first -= block_rows) {
      gates_of(p, chunk, first, k, amplitude, g);
#pragma unroll
      for (int i = block_rows - 1; i >= 0; --i) {
        if (first + i > last || first + i == 0) continue;
        sum = first + i == last ? g[i] : sum + g[i];
        chunk.row(work.tail, first + i - 1, p.K)[k] = kda::rounded(p.casts.g_cumsum, sum);
      }
    }
  }
  for (int i = threadIdx.x; i < chunk.rows; i += gate_threads)
    *chunk.row(work.beta, i, 1) =
        p.strength == kda::Strength::gates ? T(1) : write_strength(p, load<T>(p.beta, chunk.stored(p, i)));
}

/// A thread for each channel of a chunk.
template <class T>
__global__ void erase_keys(const __grid_constant__ DeviceProblem p,
                           const __grid_constant__ ChunkWork<T> work) {
  const DeviceChunk<T> chunk(work, blockIdx.x, blockIdx.y);
  for (int k = threadIdx.x; k < p.K; k += gate_threads)
    for (int i = 0; i < chunk.rows; ++i)
      chunk.row(work.read, i, p.K)[k] =
          load<T>(p.erase, chunk.stored(p, i) * p.K + k) * chunk.query_row(work.k, i, p.K)[k];
}

}  // namespace

template <class T>
void launch_chunk_prepare(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work) {
  const std::size_t rows = std::size_t(work.token_count) * (work.heads / work.group);
  const dim3 grid(static_cast<unsigned>((rows + row_warps - 1) / row_warps), 2);
  launch("gpu-chunk, norms", is_fused ? normalise_rows<T, true> : normalise_rows<T, false>, grid,
         row_warps * warp_lanes, 0, p, work);
  launch("gpu-chunk, gates", cumulate_gates<T>, dim3(work.chunk_count, work.heads), gate_threads, 0, p, work);
  if (work.read != nullptr)
    launch("gpu-chunk, erased keys", erase_keys<T>, dim3(work.chunk_count, work.heads), gate_threads, 0, p,
           work);
}

template void launch_chunk_prepare(bool, const DeviceProblem&, const ChunkWork<float>&);
template void launch_chunk_prepare(bool, const DeviceProblem&, const ChunkWork<double>&);

}  // namespace kda_check::cuda
