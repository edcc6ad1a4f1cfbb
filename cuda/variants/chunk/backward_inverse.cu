// What goes through the inverse A (B3): dA = (dv v^T + dw (k e^G)^T) diag(beta), dAkk = -stril(A^T dA A^T),
// dvb = A^T dv, dkb = A^T dw, and dbeta = rows of dvb v, summed, + rows of dkb k e^G, summed.
//
// A block has a chunk and goes once through dv and v, then through dw and k e^G, 64 columns at a time: both
// products of a tile while it is there. Products leave a thread 4 x 4 elements; what is summed along rows
// goes through shared memory, where a warp has whole rows: tree:32, lane l the channels l, l + 32, ... of all
// tiles.
#include "cuda/variants/chunk/backward.cuh"

namespace kda_check::cuda {

namespace {

constexpr int lane_columns = tile_side / warp_lanes;

template <class T>
struct InverseTiles {
  alignas(16) T left[2][tile_side][tile_stride<T>];  ///< dv or dw, one tile ahead
  alignas(16) T right[tile_side][tile_stride<T>];    ///< v or k e^G, as products take them; then A^T left
  alignas(16) T inverse[tile_side][tile_stride<T>];
  T beta[most_rows];
};

template <class T, bool is_fused>
class InverseGradients : ChunkBackward<T> {
  using Base = ChunkBackward<T>;
  using Base::chunk_, Base::forward_, Base::p_, Base::work_;
  using Factors = T[warp_rows][lane_columns];

 public:
  __device__ InverseGradients(const DeviceProblem& p, const ChunkBackwardWork<T>& work,
                              InverseTiles<T>& staged)
      : Base(p, work, 1), staged_(staged), value_tiles_(tiles_of(p.V)), tiles_(value_tiles_ + tiles_of(p.K)) {
    warp_ = static_cast<int>(threadIdx.x) / warp_lanes, lane_ = static_cast<int>(threadIdx.x) % warp_lanes;
  }

  __device__ void run() {
    this->fetch(staged_.inverse[0], forward_.Akk_inv, 0, forward_.C);
    fetch_left(0);
    for (int i = static_cast<int>(threadIdx.x); i < chunk_.rows; i += tile_threads)
      staged_.beta[i] = this->beta(i);
    Factors factors = {};
    make_right(0, factors);
    T of_values[warp_rows], of_keys[warp_rows];
    TileSums<T> dA = {};
    for (int tile = 0; tile < tiles_; ++tile) {
      this->arrive();
      fetch_left(tile + 1);
      multiply(tile, dA);
      if (is_value(tile)) {
        over_rows(tile, [&](int r, int c, int i, int v, T dvb) {
          add_term(of_values[r], v, dvb, factors[r][c]);
          chunk_.row(work_.y, i, p_.V)[v] = dvb * staged_.beta[i];
        });
      } else {
        over_rows(tile, [&](int r, int c, int i, int k, T dkb) {
          add_term(of_keys[r], k, dkb, factors[r][c]);
          chunk_.row(work_.dkb, i, p_.K)[k] = dkb;
        });
      }
      if (tile + 1 < tiles_) make_right(tile + 1, factors);
    }
#pragma unroll
    for (int r = 0; r < warp_rows; ++r) {
      const T sum =
          warp_sum(of_values[r], min(p_.V, warp_lanes)) + warp_sum(of_keys[r], min(p_.K, warp_lanes));
      if (lane_ == 0 && row_of(r) < chunk_.rows) *chunk_.row(work_.write_gradient, row_of(r), 1) = sum;
    }
    through_inverse(dA);
  }

 private:
  __device__ bool is_value(int tile) const { return tile < value_tiles_; }
  __device__ int first_of(int tile) const {
    return (is_value(tile) ? tile : tile - value_tiles_) * tile_side;
  }
  __device__ int width_of(int tile) const { return is_value(tile) ? p_.V : p_.K; }
  __device__ int depth_of(int tile) const { return min(tile_side, width_of(tile) - first_of(tile)); }

  __device__ void fetch_left(int tile) const {
    if (tile < tiles_)
      this->fetch(staged_.left[tile % 2][0], is_value(tile) ? work_.dv : work_.dw, first_of(tile),
                  width_of(tile));
  }
  /// Into the right tile, where this lane alone has read the product; what it needs again stays with it.
  __device__ void make_right(int tile, Factors& factors) const {
    const int first = first_of(tile) + lane_;
    if (is_value(tile)) {
#pragma unroll
      for (int c = 0; c < lane_columns; ++c) {
        const int v = first + c * warp_lanes;
        if (v < p_.V) values(v, factors, c);
      }
    } else {
      over_elements(tile, [&](int r, int c, int i, int k) { factors[r][c] = this->G(i, k); });
#pragma unroll
      for (int r = 0; r < warp_rows; ++r)
#pragma unroll
        for (int c = 0; c < lane_columns; ++c) factors[r][c] = exponential(p_.exponential, factors[r][c]);
      round_all(p_.casts.exponentials, factors);
      over_elements(tile,
                    [&](int r, int c, int i, int k) { factors[r][c] = this->read(i, k) * factors[r][c]; });
    }
    Factors operands;
#pragma unroll
    for (int r = 0; r < warp_rows; ++r)
#pragma unroll
      for (int c = 0; c < lane_columns; ++c) operands[r][c] = factors[r][c];
    round_all(p_.casts.operands, operands);
#pragma unroll
    for (int r = 0; r < warp_rows; ++r)
#pragma unroll
      for (int c = 0; c < lane_columns; ++c)
        staged_.right[row_of(r)][lane_ + c * warp_lanes] = operands[r][c];
  }
  /// Column v of the stored values, weighed by a write gate if there is one.
  __device__ void values(int v, Factors& factors, int c) const {
    T column[warp_rows];
    load_column(p_.v, v, column);
#pragma unroll
    for (int r = 0; r < warp_rows; ++r) factors[r][c] = column[r];
    if (p_.write.data == nullptr) return;
    load_column(p_.write, v, column);
#pragma unroll
    for (int r = 0; r < warp_rows; ++r) factors[r][c] = column[r] * factors[r][c];
  }
  __device__ void load_column(const Tensor& tensor, int v, T (&column)[warp_rows]) const {
    Stored stored[warp_rows] = {};
    fetch_stored(tensor.data, tensor.dtype, chunk_.stored(p_, warp_) * p_.V + v,
                 std::size_t(warps) * p_.HV * p_.V, (chunk_.rows - warp_ + warps - 1) / warps, stored);
    values_of(stored, tensor.dtype, column);
  }

  /// dA += left right^T, and A^T left into the right tile.
  __device__ void multiply(int tile, TileSums<T>& dA) const {
    const T* const left = staged_.left[tile % 2][0];
    add_product_of_rows<is_fused>(dA, left, tile_stride<T>, staged_.right[0], tile_stride<T>, depth_of(tile));
    TileSums<T> sums = {};
    add_transposed_lower_product<is_fused>(sums, staged_.inverse[0], tile_stride<T>, left, tile_stride<T>,
                                           chunk_.rows);
    __syncthreads();
    const TilePlace place;
    over_sums([&](int r, int c) { staged_.right[place.transposed_row(r)][place.column + c] = sums[r][c]; });
    __syncthreads();
  }

  /// dAkk, from dA but for beta.
  __device__ void through_inverse(TileSums<T>& dA) const {
    const TilePlace place;
    over_sums([&](int r, int c) {
      const int i = place.row(r), j = place.apart_column(c);
      dA[r][c] = j < i && i < chunk_.rows ? dA[r][c] * staged_.beta[j] : T(0);
    });
    keep(staged_.left[0], dA);
    TileSums<T> square = {};
    add_product_of_rows<is_fused>(square, staged_.left[0][0], tile_stride<T>, staged_.inverse[0],
                                  tile_stride<T>, chunk_.rows);  // dA A^T
    keep(staged_.right, square);
    TileSums<T> dAkk = {};
    add_transposed_lower_product<is_fused>(dAkk, staged_.inverse[0], tile_stride<T>, staged_.right[0],
                                           tile_stride<T>, chunk_.rows);
    over_sums([&](int r, int c) {
      const int i = place.transposed_row(r), j = place.column + c;
      if (i < chunk_.rows && j < forward_.C)
        chunk_.row(work_.dAkk, i, forward_.C)[j] = j < i ? -dAkk[r][c] : T(0);
    });
  }
  /// A factor of a product to come.
  __device__ void keep(T (&tile)[tile_side][tile_stride<T>], TileSums<T>& sums) const {
    round_all(p_.casts.dA, sums);
    const TilePlace place;
    over_sums([&](int r, int c) { tile[place.row(r)][place.apart_column(c)] = sums[r][c]; });
    __syncthreads();
  }
  template <class Body>
  __device__ static void over_sums(Body body) {
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) body(r, c);
  }

  __device__ int row_of(int r) const { return warp_ + r * warps; }
  /// body(r, c, row, column) for what this lane has of a tile.
  template <class Body>
  __device__ void over_elements(int tile, Body body) const {
#pragma unroll
    for (int r = 0; r < warp_rows; ++r)
#pragma unroll
      for (int c = 0; c < lane_columns; ++c) {
        const int i = row_of(r), at = first_of(tile) + lane_ + c * warp_lanes;
        if (i < chunk_.rows && at < width_of(tile)) body(r, c, i, at);
      }
  }
  /// ... with its element of the product.
  template <class Body>
  __device__ void over_rows(int tile, Body body) const {
    over_elements(tile, [&](int r, int c, int i, int at) {
      body(r, c, i, at, staged_.right[i][lane_ + c * warp_lanes]);
    });
  }
  __device__ void add_term(T& sum, int at, T a, T b) const {
    sum = at < warp_lanes ? a * b : multiply_add<is_fused>(a, b, sum);
  }

  InverseTiles<T>& staged_;
  const int value_tiles_, tiles_;
  int warp_, lane_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(tile_threads, sizeof(T) == sizeof(float) ? 2 : 1)
    inverse_gradients(const __grid_constant__ DeviceProblem p,
                      const __grid_constant__ ChunkBackwardWork<T> work) {
  extern __shared__ __align__(16) unsigned char memory[];
  InverseGradients<T, is_fused>(p, work, *reinterpret_cast<InverseTiles<T>*>(memory)).run();
}

}  // namespace

template <class T>
void launch_chunk_backward_inverse(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work) {
  launch("gpu-chunk backwards, through the inverse",
         is_fused ? inverse_gradients<T, true> : inverse_gradients<T, false>,
         dim3(work.forward.chunk_count, work.heads), tile_threads, sizeof(InverseTiles<T>), p, work);
}

template void launch_chunk_backward_inverse(bool, const DeviceProblem&, const ChunkBackwardWork<float>&);
template void launch_chunk_backward_inverse(bool, const DeviceProblem&, const ChunkBackwardWork<double>&);

}  // namespace kda_check::cuda
