// u = A (beta v), w = A (beta k e^G), qg = q e^G, kg = k e^(Gn - G) (F5 to F7), A = Akk_inv. A block computes
// 64 columns of u, or of w with the same channels of qg and kg.
#include "cuda/arithmetic/tile.cuh"
#include "cuda/variants/chunk/chunk.cuh"

namespace kda_check::cuda {

namespace {

template <class T, bool is_fused>
class Operands {
 public:
  __device__ Operands(const DeviceProblem& p, const ChunkWork<T>& work, TilePair<T>& staged)
      : p_(p), work_(work), chunk_(work, blockIdx.x, blockIdx.y), staged_(staged) {}

  __device__ void run(int tile) {
    const T* const A = chunk_.row(work_.Akk_inv, 0, work_.C);
    copy_tile_async(staged_.left[0], tile_stride<T>, TileSource<T>{A, chunk_.stride(work_.C), work_.C},
                    chunk_.rows, work_.C);
    __pipeline_commit();
    const int key_tiles = tiles_of(p_.K);
    const bool of_key = tile < key_tiles;
    const int first = (of_key ? tile : tile - key_tiles) * tile_side;
    if (of_key) {
      scale_keys(first);
    } else {
      scale_values(first);
    }
    __pipeline_wait_prior(0);
    __syncthreads();
    multiply(of_key ? work_.w : work_.u, of_key ? p_.K : p_.V, first, of_key ? p_.casts.w : p_.casts.u);
  }

 private:
  __device__ T exponential_of(T x) const {
    return kda::rounded(p_.casts.exponentials, exponential(p_.exponential, x));
  }
  __device__ T operand(T x) const { return kda::rounded(p_.casts.operands, x); }

  /// v, weighed by a write gate if there is one.
  __device__ T value(std::size_t at) const {
    const T v = load<T>(p_.v, at);
    return p_.write.data == nullptr ? v : load<T>(p_.write, at) * v;
  }

  __device__ void scale_values(int first) {
    const int columns = min(tile_side, p_.V - first);
    for (int e = threadIdx.x; e < chunk_.rows * tile_side; e += tile_threads) {
      const int i = e / tile_side, v = e % tile_side;
      if (v >= columns) continue;
      const T beta = *chunk_.row(work_.beta, i, 1);
      const std::size_t at = chunk_.stored(p_, i) * p_.V + first + v;
      staged_.right[i][v] = operand(value(at) * beta);  // beta v
    }
  }

  __device__ void scale_keys(int first) {
    const int columns = min(tile_side, p_.K - first), last = chunk_.rows - 1;
    for (int e = threadIdx.x; e < chunk_.rows * tile_side; e += tile_threads) {
      const int i = e / tile_side, k = e % tile_side;
      if (k >= columns) continue;
      const T beta = *chunk_.row(work_.beta, i, 1);
      const T q = chunk_.query_row(work_.q, i, p_.K)[first + k];
      const T key = chunk_.query_row(work_.k, i, p_.K)[first + k];
      const T G = chunk_.row(work_.G, i, p_.K)[first + k];
      const T tail = work_.tail != nullptr ? chunk_.row(work_.tail, i, p_.K)[first + k]
                                           : chunk_.row(work_.G, last, p_.K)[first + k] - G;  // Gn - G
      const T decay = exponential_of(G);
      const T read = work_.read == nullptr ? key : chunk_.row(work_.read, i, p_.K)[first + k];
      const T weighted = kda::rounded(p_.casts.beta_key, read * beta);
      staged_.right[i][k] = operand(weighted * decay);                // beta k e^G
      chunk_.row(work_.qg, i, p_.K)[first + k] = operand(q * decay);  // q e^G
      chunk_.row(work_.kg, i, p_.K)[first + k] = operand(key * exponential_of(tail));
    }
  }

  __device__ void multiply(T* result, int width, int first, kda::Rounding rounding) const {
    const TilePlace place;
    TileSums<T> sums = {};
    add_product<is_fused>(sums, staged_.left[0], tile_stride<T>, staged_.right[0], tile_side,
                          lower_depth(place.first_row, chunk_.rows));
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (place.row(r) < chunk_.rows && first + place.column + c < width)
          chunk_.row(result, place.row(r), width)[first + place.column + c] =
              kda::rounded(rounding, sums[r][c]);
  }

  const DeviceProblem& p_;
  const ChunkWork<T>& work_;
  const DeviceChunk<T> chunk_;
  TilePair<T>& staged_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(tile_threads)
    operands_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ ChunkWork<T> work) {
  extern __shared__ __align__(16) unsigned char memory[];
  Operands<T, is_fused>(p, work, *reinterpret_cast<TilePair<T>*>(memory)).run(blockIdx.z);
}

}  // namespace

template <class T>
void launch_chunk_operands(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work) {
  launch("gpu-chunk, operands", is_fused ? operands_kernel<T, true> : operands_kernel<T, false>,
         dim3(work.chunk_count, work.heads, tiles_of(p.K) + tiles_of(p.V)), tile_threads, sizeof(TilePair<T>),
         p, work);
}

template void launch_chunk_operands(bool, const DeviceProblem&, const ChunkWork<float>&);
template void launch_chunk_operands(bool, const DeviceProblem&, const ChunkWork<double>&);

}  // namespace kda_check::cuda
