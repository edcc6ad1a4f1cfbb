// dAqk = scale tril(do v_new^T), dv_local = Aqk^T do (B1), and qg^T do.
#include "chunk_backward.cuh"

namespace kda_check::cuda {

namespace {

template <class T, bool is_fused>
class ScoreGradients : ChunkBackward<T> {
  using Base = ChunkBackward<T>;
  using Base::chunk_, Base::forward_, Base::p_, Base::work_;

 public:
  __device__ ScoreGradients(const DeviceProblem& p, const ChunkBackwardWork<T>& work, RowTiles<T>& staged)
      : Base(p, work, blocks(p)), staged_(staged) {}

  /// Blocks of a chunk: 64 columns of do, each, and one for dAqk.
  __host__ __device__ static int blocks(const DeviceProblem& p) { return tiles_of(p.V) + 1; }
  __device__ void run() {
    if (this->block_ + 1 == blocks(p_)) return scores();
    const int first = this->block_ * tile_side;
    this->make_tile(staged_.right[0], first, p_.V, [&](int i, int v) { return this->output_gradient(i, v); });
    local_values(first);
    for (int k = 0; k < p_.K; k += tile_side) by_output(k, first);
  }

 private:
  __device__ void scores() {
    TileSums<T> sums = {};
    for (int v = 0; v < p_.V; v += tile_side) {
      this->make_tile(staged_.left[0], v, p_.V, [&](int i, int at) { return this->output_gradient(i, at); });
      this->fetch(staged_.right[0], forward_.v_new, v, p_.V);
      this->arrive();
      add_product_of_rows<is_fused>(sums, staged_.left[0], tile_stride<T>, staged_.right[0], tile_stride<T>,
                                    min(tile_side, p_.V - v));
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = place_.row(r), j = place_.apart_column(c);
        if (i < chunk_.rows && j < forward_.C)
          chunk_.row(work_.dAqk, i, forward_.C)[j] = j <= i ? T(p_.scale) * sums[r][c] : T(0);
      }
  }

  __device__ void local_values(int first) {
    this->fetch(staged_.left[0], forward_.Aqk, 0, forward_.C);
    this->arrive();
    for (int e = static_cast<int>(threadIdx.x); e < chunk_.rows * tile_side; e += tile_threads) {
      const int i = e / tile_side, v = e % tile_side;
      if (first + v < p_.V) chunk_.row(work_.d_o, i, p_.V)[first + v] = staged_.right[i][v];
    }
    TileSums<T> sums = {};
    add_transposed_lower_product<is_fused>(sums, staged_.left[0], tile_stride<T>, staged_.right[0],
                                           tile_stride<T>, chunk_.rows);
    round_all(p_.casts.dv_local, sums);
    over_sums([&](int i, int v, int r, int c) {
      if (i < chunk_.rows && first + v < p_.V) chunk_.row(work_.dv_local, i, p_.V)[first + v] = sums[r][c];
    });
  }

  __device__ void by_output(int first_key, int first_value) {
    __syncthreads();  // the left tile is still read
    this->fetch(staged_.left[0], forward_.qg, first_key, p_.K);
    this->arrive();
    TileSums<T> sums = {};
    add_transposed_product<is_fused>(sums, staged_.left[0], tile_stride<T>, staged_.right[0], tile_stride<T>,
                                     chunk_.rows);
    T* const to = this->state(work_.by_output);
    over_sums([&](int k, int v, int r, int c) {
      if (first_key + k < p_.K && first_value + v < p_.V)
        to[std::size_t(first_key + k) * p_.V + first_value + v] = sums[r][c];
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

  RowTiles<T>& staged_;
  const TilePlace place_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(tile_threads)
    score_gradients(const __grid_constant__ DeviceProblem p,
                    const __grid_constant__ ChunkBackwardWork<T> work) {
  extern __shared__ __align__(16) unsigned char memory[];
  ScoreGradients<T, is_fused>(p, work, *reinterpret_cast<RowTiles<T>*>(memory)).run();
}

}  // namespace

template <class T>
void launch_chunk_backward_scores(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work) {
  launch("gpu-chunk backwards, scores", is_fused ? score_gradients<T, true> : score_gradients<T, false>,
         dim3(work.forward.chunk_count * ScoreGradients<T, true>::blocks(p), work.heads), tile_threads,
         sizeof(RowTiles<T>), p, work);
}

template void launch_chunk_backward_scores(bool, const DeviceProblem&, const ChunkBackwardWork<float>&);
template void launch_chunk_backward_scores(bool, const DeviceProblem&, const ChunkBackwardWork<double>&);

}  // namespace kda_check::cuda
