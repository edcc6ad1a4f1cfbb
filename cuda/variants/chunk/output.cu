// o = scale (qg h) + Aqk v_new (F10). A block computes 64 columns of one chunk.
#include "cuda/arithmetic/tile.cuh"
#include "cuda/variants/chunk/chunk.cuh"

namespace kda_check::cuda {

namespace {

template <class T, bool is_fused>
class Output {
 public:
  __device__ Output(const DeviceProblem& p, const ChunkWork<T>& work, TilePair<T>& staged)
      : p_(p), work_(work), chunk_(work, blockIdx.x, blockIdx.y), staged_(staged) {}

  __device__ void run(int tile) {
    const int first = tile * tile_side, columns = min(tile_side, p_.V - first);
    const TilePlace place;
    TileSums<T> sums = {};
    const T* const h = work_.h + work_.state(blockIdx.x, chunk_.local, p_);
    const T* const qg = chunk_.row(work_.qg, 0, p_.K);
    for (int k = 0; k < p_.K; k += tile_side) {
      const int depth = min(tile_side, p_.K - k);
      stage({qg + k, chunk_.stride(p_.K), p_.K}, depth,
            {h + std::size_t(k) * p_.V + first, std::size_t(p_.V), p_.V}, depth, columns);
      add_product<is_fused>(sums, staged_.left[0], tile_stride<T>, staged_.right[0], tile_side,
                            depth);  // qg h
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[r][c] = T(p_.scale) * sums[r][c];
    stage({chunk_.row(work_.Aqk, 0, work_.C), chunk_.stride(work_.C), work_.C}, work_.C,
          {chunk_.row(work_.v_new, 0, p_.V) + first, chunk_.stride(p_.V), p_.V}, chunk_.rows, columns);
    add_product<is_fused>(sums, staged_.left[0], tile_stride<T>, staged_.right[0], tile_side,
                          lower_depth(place.first_row, chunk_.rows));  // + Aqk v_new
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (place.row(r) < chunk_.rows && place.column + c < columns)
          store(sums[r][c], p_.o.data, p_.o.dtype,
                chunk_.stored(p_, place.row(r)) * p_.V + first + place.column + c);
  }

 private:
  /// The chunk's rows of the left factor, `depth` rows of the right one.
  __device__ void stage(const TileSource<T>& left, int left_columns, const TileSource<T>& right, int depth,
                        int columns) {
    copy_tile_async(staged_.left[0], tile_stride<T>, left, chunk_.rows, left_columns);
    copy_tile_async(staged_.right[0], tile_side, right, depth, columns);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
  }

  const DeviceProblem& p_;
  const ChunkWork<T>& work_;
  const DeviceChunk<T> chunk_;
  TilePair<T>& staged_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(tile_threads)
    output_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ ChunkWork<T> work) {
  extern __shared__ __align__(16) unsigned char memory[];
  Output<T, is_fused>(p, work, *reinterpret_cast<TilePair<T>*>(memory)).run(blockIdx.z);
}

}  // namespace

template <class T>
void launch_chunk_output(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work) {
  launch("gpu-chunk, output", is_fused ? output_kernel<T, true> : output_kernel<T, false>,
         dim3(work.chunk_count, work.heads, tiles_of(p.V)), tile_threads, sizeof(TilePair<T>), p, work);
}

template void launch_chunk_output(bool, const DeviceProblem&, const ChunkWork<float>&);
template void launch_chunk_output(bool, const DeviceProblem&, const ChunkWork<double>&);

}  // namespace kda_check::cuda
