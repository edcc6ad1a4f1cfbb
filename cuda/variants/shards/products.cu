// Products of maps: M x and plus + M x. A block computes 64 x 64 elements of one of them, of one head.
#include "cuda/arithmetic/tile.cuh"
#include "cuda/variants/shards/segments.cuh"

namespace kda_check::cuda {

namespace {

template <class T, bool is_fused>
class Product {
 public:
  __device__ Product(const MapProduct<T>& product, const MapJob& job, int K, int heads, TilePair<T>& staged)
      : product_(product), K_(K), staged_(staged) {
    const auto block = [&](std::uint32_t number, int width) {
      return (std::size_t{number} * heads + blockIdx.y) * K * width;
    };
    M_ = product.M + block(job.map, K), x_ = product.x + block(job.x, product.width);
    plus_ = product.plus == nullptr ? nullptr : product.plus + block(job.plus, product.width);
    y_ = product.y + block(job.y, product.width);
  }

  __device__ void run(int tile) const {
    const int across = tiles_of(product_.width), first_row = tile / across * tile_side,
              first = tile % across * tile_side, rows = min(tile_side, K_ - first_row),
              columns = min(tile_side, product_.width - first);
    const TilePlace place;
    const auto over_own = [&](auto body) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (place.row(r) < rows && place.column + c < columns)
            body(r, c, std::size_t(first_row + place.row(r)) * product_.width + first + place.column + c);
    };
    TileSums<T> sums = {};
    if (plus_ != nullptr) over_own([&](int r, int c, std::size_t at) { sums[r][c] = plus_[at]; });
    for (int k = 0; k < K_; k += tile_side) {
      const int depth = min(tile_side, K_ - k);
      __syncthreads();  // nobody reads the tiles of before
      copy_tile_async(staged_.left[0], tile_stride<T>,
                      TileSource<T>{M_ + std::size_t(first_row) * K_ + k, std::size_t(K_), K_}, rows, depth);
      copy_tile_async(staged_.right[0], tile_side,
                      TileSource<T>{x_ + std::size_t(k) * product_.width + first, std::size_t(product_.width),
                                    product_.width},
                      depth, columns);
      __pipeline_commit();
      __pipeline_wait_prior(0);
      __syncthreads();
      round_right(depth, columns);
      add_product<is_fused>(sums, staged_.left[0], tile_stride<T>, staged_.right[0], tile_side, depth);
    }
    round_all(product_.result, sums);
    over_own([&](int r, int c, std::size_t at) { y_[at] = sums[r][c]; });
  }

 private:
  __device__ void round_right(int depth, int columns) const {
    if (product_.factor == kda::Rounding::none) return;
    for (int e = threadIdx.x; e < depth * tile_side; e += tile_threads)
      if (e % tile_side < columns) {
        T& x = staged_.right[e / tile_side][e % tile_side];
        x = kda::rounded(product_.factor, x);
      }
    __syncthreads();
  }

  const MapProduct<T>& product_;
  const int K_;
  TilePair<T>& staged_;
  const T *M_, *x_, *plus_;
  T* y_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(tile_threads)
    product_kernel(const __grid_constant__ MapProduct<T> product, const MapJob* jobs, int K, int heads) {
  extern __shared__ __align__(16) unsigned char memory[];
  const unsigned tiles = tiles_of(K) * tiles_of(product.width);
  Product<T, is_fused>(product, jobs[blockIdx.x / tiles], K, heads, *reinterpret_cast<TilePair<T>*>(memory))
      .run(static_cast<int>(blockIdx.x % tiles));
}

constexpr int copying_threads = 256;

/// A block for each sequence and head.
template <class T>
__global__ void enter_kernel(const __grid_constant__ DeviceProblem p,
                             const __grid_constant__ ChunkWork<T> work, const PassedParts* parts,
                             const __grid_constant__ Tensor from, T* states) {
  const std::size_t state = std::size_t{blockIdx.x} * p.HV + work.first_head + blockIdx.y;
  T* const to = states + work.state(parts[blockIdx.x].first, static_cast<int>(blockIdx.y), p);
  for (int e = threadIdx.x; e < p.K * p.V; e += copying_threads)
    to[e] = from.data == nullptr ? T(0) : load<T>(from, state_element(p, state, e / p.V, e % p.V));
}

template <class T>
__global__ void leave_kernel(const __grid_constant__ DeviceProblem p,
                             const __grid_constant__ ChunkWork<T> work, const PassedParts* parts,
                             const T* states, const __grid_constant__ MutableTensor to) {
  const std::size_t state = std::size_t{blockIdx.x} * p.HV + work.first_head + blockIdx.y;
  const T* const from = states + work.state(parts[blockIdx.x].last, static_cast<int>(blockIdx.y), p);
  for (int e = threadIdx.x; e < p.K * p.V; e += copying_threads)
    store(from[e], to.data, to.dtype, state_element(p, state, e / p.V, e % p.V));
}

template <class T>
__global__ void round_kernel(kda::Rounding rounding, T* x, std::size_t count) {
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x)
    x[i] = kda::rounded(rounding, x[i]);
}

}  // namespace

template <class T>
void launch_map_products(bool is_fused, const DeviceProblem& p, int heads, const MapProduct<T>& product,
                         const MapJob* jobs, std::size_t count) {
  launch("gpu-chunk, maps of parts", is_fused ? product_kernel<T, true> : product_kernel<T, false>,
         dim3(static_cast<unsigned>(count) * tiles_of(p.K) * tiles_of(product.width), heads), tile_threads,
         sizeof(TilePair<T>), product, jobs, p.K, heads);
}

template <class T>
void launch_enter(const DeviceProblem& p, const ChunkWork<T>& work, const PassedParts* parts, int sequences,
                  const Tensor& from, T* states) {
  launch("gpu-chunk, initial states", enter_kernel<T>, dim3(sequences, work.heads), copying_threads, 0, p,
         work, parts, from, states);
}
template <class T>
void launch_leave(const DeviceProblem& p, const ChunkWork<T>& work, const PassedParts* parts, int sequences,
                  const T* states, const MutableTensor& to) {
  launch("gpu-chunk, final states", leave_kernel<T>, dim3(sequences, work.heads), copying_threads, 0, p, work,
         parts, states, to);
}

template <class T>
void launch_round(kda::Rounding rounding, T* x, std::size_t count) {
  if (rounding != kda::Rounding::none)
    launch("gpu-chunk, maps rounded", round_kernel<T>, dim3(1024), copying_threads, 0, rounding, x, count);
}

#define KDA_CHECK_INSTANTIATE(T)                                                                           \
  template void launch_map_products(bool, const DeviceProblem&, int, const MapProduct<T>&, const MapJob*,  \
                                    std::size_t);                                                          \
  template void launch_enter(const DeviceProblem&, const ChunkWork<T>&, const PassedParts*, int,           \
                             const Tensor&, T*);                                                           \
  template void launch_leave(const DeviceProblem&, const ChunkWork<T>&, const PassedParts*, int, const T*, \
                             const MutableTensor&);                                                        \
  template void launch_round(kda::Rounding, T*, std::size_t);
KDA_CHECK_INSTANTIATE(float)
KDA_CHECK_INSTANTIATE(double)
#undef KDA_CHECK_INSTANTIATE

}  // namespace kda_check::cuda
