// What goes through the inverse A (B3): dA = (dv v^T + dw (k e^G)^T) diag(beta), dAkk = -stril(A^T dA A^T),
// dvb = A^T dv, dkb = A^T dw, and dbeta = rows of dvb v, summed, + rows of dkb k e^G, summed.
//
// A block has a chunk. Products leave a thread 4 x 4 elements; what is summed along rows goes through shared
// memory, where a warp has whole rows: tree:32, lane l the channels l, l + 32, ... of all tiles.
#include "chunk_backward.cuh"

namespace kda_check::cuda {

namespace {

constexpr int warps = tile_threads / warp_lanes;
constexpr int warp_rows = most_rows / warps;

template <class T>
struct Staged {
  RowTiles<T> rows;
  alignas(16) T inverse[tile_side][tile_stride<T>];
};

template <class T, bool is_fused>
class InverseGradients : ChunkBackward<T> {
  using Base = ChunkBackward<T>;
  using Base::chunk_, Base::forward_, Base::p_, Base::work_;

 public:
  __device__ InverseGradients(const DeviceProblem& p, const ChunkBackwardWork<T>& work, Staged<T>& staged)
      : Base(p, work, 1), staged_(staged) {
    warp_ = static_cast<int>(threadIdx.x) / warp_lanes, lane_ = static_cast<int>(threadIdx.x) % warp_lanes;
  }

  __device__ void run() {
    this->fetch(staged_.inverse[0], forward_.Akk_inv, 0, forward_.C);
    of_inverse();
    T of_values[warp_rows], of_keys[warp_rows];
    for (int v = 0; v < p_.V; v += tile_side) {
      times_inverse(work_.dv, v, p_.V);
      over_rows(v, p_.V, [&](int r, int i, int at, T dvb) {
        add_term(of_values[r], at, dvb, this->value(i, at));
        chunk_.row(work_.y, i, p_.V)[at] = dvb * this->beta(i);
      });
    }
    for (int k = 0; k < p_.K; k += tile_side) {
      times_inverse(work_.dw, k, p_.K);
      over_rows(k, p_.K, [&](int r, int i, int at, T dkb) {
        add_term(of_keys[r], at, dkb, decayed_key(i, at));
        chunk_.row(work_.dkb, i, p_.K)[at] = dkb;
      });
    }
#pragma unroll
    for (int r = 0; r < warp_rows; ++r) {
      const T sum =
          warp_sum(of_values[r], min(p_.V, warp_lanes)) + warp_sum(of_keys[r], min(p_.K, warp_lanes));
      if (lane_ == 0 && row_of(r) < chunk_.rows) *chunk_.row(work_.write_gradient, row_of(r), 1) = sum;
    }
  }

 private:
  /// k e^G
  __device__ T decayed_key(int i, int k) const {
    return this->key(i, k) * this->exponential_of(this->G(i, k));
  }

  /// dA and dAkk.
  __device__ void of_inverse() {
    TileSums<T> sums = {};
    for (int v = 0; v < p_.V; v += tile_side) {
      this->fetch(staged_.rows.left[0], work_.dv, v, p_.V);
      this->make_tile(staged_.rows.right[0], v, p_.V,
                      [&](int i, int at) { return this->operand(this->value(i, at)); });
      add(sums, min(tile_side, p_.V - v));  // dv v^T
    }
    for (int k = 0; k < p_.K; k += tile_side) {
      this->fetch(staged_.rows.left[0], work_.dw, k, p_.K);
      this->make_tile(staged_.rows.right[0], k, p_.K,
                      [&](int i, int at) { return this->operand(decayed_key(i, at)); });
      add(sums, min(tile_side, p_.K - k));  // + dw (k e^G)^T
    }
    const TilePlace place;
    over_sums([&](int r, int c) {
      const int i = place.row(r), j = place.apart_column(c);
      sums[r][c] = j < i && i < chunk_.rows ? sums[r][c] * this->beta(j) : T(0);
    });
    keep(staged_.rows.left, sums);
    TileSums<T> square = {};
    add_product_of_rows<is_fused>(square, staged_.rows.left[0], tile_stride<T>, staged_.inverse[0],
                                  tile_stride<T>, chunk_.rows);  // dA A^T
    keep(staged_.rows.right, square);
    TileSums<T> dAkk = {};
    add_transposed_lower_product<is_fused>(dAkk, staged_.inverse[0], tile_stride<T>, staged_.rows.right[0],
                                           tile_stride<T>, chunk_.rows);
    over_sums([&](int r, int c) {
      const int i = place.transposed_row(r), j = place.column + c;
      if (i < chunk_.rows && j < forward_.C)
        chunk_.row(work_.dAkk, i, forward_.C)[j] = j < i ? -dAkk[r][c] : T(0);
    });
  }
  __device__ void add(TileSums<T>& sums, int depth) const {
    this->arrive();
    add_product_of_rows<is_fused>(sums, staged_.rows.left[0], tile_stride<T>, staged_.rows.right[0],
                                  tile_stride<T>, depth);
    __syncthreads();
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

  /// 64 columns of A^T x, into the right tile.
  __device__ void times_inverse(T* x, int first, int width) {
    __syncthreads();  // the tiles are still read
    this->fetch(staged_.rows.left[0], x, first, width);
    this->arrive();
    TileSums<T> sums = {};
    add_transposed_lower_product<is_fused>(sums, staged_.inverse[0], tile_stride<T>, staged_.rows.left[0],
                                           tile_stride<T>, chunk_.rows);
    const TilePlace place;
    over_sums(
        [&](int r, int c) { staged_.rows.right[place.transposed_row(r)][place.column + c] = sums[r][c]; });
    __syncthreads();
  }
  __device__ int row_of(int r) const { return warp_ + r * warps; }
  /// body(r, row, column, element) for what this lane has of the right tile.
  template <class Body>
  __device__ void over_rows(int first, int width, Body body) const {
#pragma unroll
    for (int r = 0; r < warp_rows; ++r)
#pragma unroll
      for (int at = lane_; at < tile_side; at += warp_lanes)
        if (row_of(r) < chunk_.rows && first + at < width)
          body(r, row_of(r), first + at, staged_.rows.right[row_of(r)][at]);
  }
  __device__ void add_term(T& sum, int at, T a, T b) const {
    sum = at < warp_lanes ? a * b : multiply_add<is_fused>(a, b, sum);
  }

  Staged<T>& staged_;
  int warp_, lane_;
};

template <class T, bool is_fused>
__global__ void __launch_bounds__(tile_threads, sizeof(T) == sizeof(float) ? 2 : 1)
    inverse_gradients(const __grid_constant__ DeviceProblem p,
                      const __grid_constant__ ChunkBackwardWork<T> work) {
  extern __shared__ __align__(16) unsigned char memory[];
  InverseGradients<T, is_fused>(p, work, *reinterpret_cast<Staged<T>*>(memory)).run();
}

}  // namespace

template <class T>
void launch_chunk_backward_inverse(bool is_fused, const DeviceProblem& p, const ChunkBackwardWork<T>& work) {
  launch("gpu-chunk backwards, through the inverse",
         is_fused ? inverse_gradients<T, true> : inverse_gradients<T, false>,
         dim3(work.forward.chunk_count, work.heads), tile_threads, sizeof(Staged<T>), p, work);
}

template void launch_chunk_backward_inverse(bool, const DeviceProblem&, const ChunkBackwardWork<float>&);
template void launch_chunk_backward_inverse(bool, const DeviceProblem&, const ChunkBackwardWork<double>&);

}  // namespace kda_check::cuda
