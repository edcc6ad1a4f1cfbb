// dv_local = Aqk^T do (B1), and qg^T do. A block has 64 columns of do.
#include "cuda/variants/chunk/backward.cuh"

namespace kda_check::cuda {

namespace {

template <class T>
struct LocalTiles {
  alignas(16) T left[2][tile_side][tile_stride<T>];  ///< Aqk, then qg, one tile ahead
  alignas(16) T d_o[tile_side][tile_stride<T>];
};

template <class T, bool is_fused>
class LocalGradients : ChunkBackward<T> {
  using Base = ChunkBackward<T>;
  using Base::chunk_, Base::forward_, Base::p_, Base::work_;

 public:
  __device__ LocalGradients(const DeviceProblem& p, const ChunkBackwardWork<T>& work, LocalTiles<T>& staged)
      : Base(p, work, tiles_of(p.V)), first_(this->block_ * tile_side), staged_(staged) {}

  __device__ void run() {
    this->fetch(staged_.left[0][0], forward_.Aqk, 0, forward_.C);
    stage_outputs();
    const int steps = 1 + tiles_of(p_.K);
    for (int step = 0; step < steps; ++step) {
      this->arrive();
      const int next = step * tile_side;  // of qg's columns
      if (next < p_.K) this->fetch(staged_.left[(step + 1) % 2][0], forward_.qg, next, p_.K);
      const T* const left = staged_.left[step % 2][0];
      step == 0 ? local_values(left) : by_output(left, next - tile_side);
    }
  }

 private:
  /// do as products take it, to shared memory and for others: a thread has every fourth row of a column.
  __device__ void stage_outputs() {
    constexpr int apart = tile_threads / tile_side, rows = most_rows / apart;
    const int from = static_cast<int>(threadIdx.x) / tile_side, c = static_cast<int>(threadIdx.x) % tile_side,
              v = first_ + c;
    if (v >= p_.V) return;
    const Tensor& source = p_.output_gradient;
    Stored stored[rows] = {};
    T x[rows];
    if (source.data != nullptr)
      fetch_stored(source.data, source.dtype, chunk_.stored(p_, from) * p_.V + v,
                   std::size_t(apart) * p_.HV * p_.V, (chunk_.rows - from + apart - 1) / apart, stored);
    values_of(stored, source.dtype, x);
    round_all(p_.casts.operands, x);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const int i = from + r * apart;
      if (i >= chunk_.rows) break;
      staged_.d_o[i][c] = x[r];
      chunk_.row(work_.d_o, i, p_.V)[v] = x[r];
    }
  }

  __device__ void local_values(const T* Aqk) {
    TileSums<T> sums = {};
    add_transposed_lower_product<is_fused>(sums, Aqk, tile_stride<T>, staged_.d_o[0], tile_stride<T>,
                                           chunk_.rows);
    round_all(p_.casts.dv_local, sums);
    over_sums([&](int i, int v, int r, int c) {
      if (i < chunk_.rows && first_ + v < p_.V) chunk_.row(work_.dv_local, i, p_.V)[first_ + v] = sums[r][c];
    });
  }

  __device__ void by_output(const T* qg, int first_key) {
    TileSums<T> sums = {};
    add_transposed_product<is_fused>(sums, qg, tile_stride<T>, staged_.d_o[0], tile_stride<T>, chunk_.rows);
    T* const to = this->state(work_.by_output);
    over_sums([&](int k, int v, int r, int c) {
      if (first_key + k < p_.K && first_ + v < p_.V)
        to[std::size_t(first_key + k) * p_.V + first_ + v] = sums[r][c];
    });
  }

  /// body(row, column, r, c) of a transposed product.
  template <class Body>
  __device__ void over_sums(Body body) const {
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) body(place_.transposed_row(r), place_.column + c, r, c);
  }

  const int first_;  ///< column
  LocalTiles<T>& staged_;
  const TilePlace place_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(tile_threads)
    local_gradients(const __grid_constant__ DeviceProblem p,
                    const __grid_constant__ ChunkBackwardWork<T> work) {
  extern __shared__ __align__(16) unsigned char memory[];
  LocalGradients<T, is_fused>(p, work, *reinterpret_cast<LocalTiles<T>*>(memory)).run();
}

}  // namespace

template <class T>
void launch_chunk_backward_local(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work) {
  launch("gpu-chunk backwards, values of the chunk",
         is_fused ? local_gradients<T, true> : local_gradients<T, false>,
         dim3(work.forward.chunk_count * tiles_of(p.V), work.heads), tile_threads, sizeof(LocalTiles<T>), p,
         work);
}

template void launch_chunk_backward_local(bool, const DeviceProblem&, const ChunkBackwardWork<float>&);
template void launch_chunk_backward_local(bool, const DeviceProblem&, const ChunkBackwardWork<double>&);

}  // namespace kda_check::cuda
