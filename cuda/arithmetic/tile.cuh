// Products of tiles in shared memory. 256 threads compute 64 x 64 elements, 4 x 4 each; an element is one
// running sum over the depth, from 0 upwards, so that how a matrix is cut into tiles changes nothing.
#pragma once

#include <cuda_pipeline.h>

#include "cuda/arithmetic/arithmetic.cuh"

namespace kda_check::cuda {

constexpr int tile_side = 64;
constexpr int tile_threads = 256;

template <class T>
__device__ const Four<T>& four_at(const T* at) {
  return *reinterpret_cast<const Four<T>*>(at);
}

/// Row length of a tile that is read along its rows: the threads of a warp read two rows at once, which must
/// not lie in the same banks.
template <class T>
constexpr int tile_stride = tile_side + 16 / static_cast<int>(sizeof(T));

/// A thread's 4 x 4 elements of a tile. A warp has 16 rows, so that all its rows of a lower triangular factor
/// end together, and 32 columns: what it reads of either factor at once lies in different banks. Rows are
/// four apart where the left factor is read along its rows, neighbours where it is read along its columns.
struct TilePlace {
  int first_row, column;
  __device__ TilePlace() {
    const int warp = static_cast<int>(threadIdx.x) / warp_lanes,
              lane = static_cast<int>(threadIdx.x) % warp_lanes;
    first_row = warp / 2 * 16 + lane / 8;
    column = warp % 2 * 32 + lane % 8 * 4;
  }
  __device__ int row(int r) const { return first_row + 4 * r; }
  __device__ int transposed_row(int r) const { return first_row / 16 * 16 + first_row % 4 * 4 + r; }
  /// Columns of a right factor that is read along its columns, eight apart.
  __device__ int apart_column(int c) const { return column / 32 * 32 + column % 32 / 4 + 8 * c; }
  /// The first of the warp's 16 rows.
  __device__ int warp_row() const { return first_row / 16 * 16; }
};

/// Tiles that `width` columns take.
__host__ __device__ constexpr int tiles_of(int width) { return (width + tile_side - 1) / tile_side; }

/// Both factors of a product in shared memory.
template <class T>
struct TilePair {
  alignas(16) T left[tile_side][tile_stride<T>];
  alignas(16) T right[tile_side][tile_side];
};

template <class T>
using TileSums = T[4][4];

/// sums[r][c] += a[r][d] b[d][c] for one d.
template <bool is_fused, class T>
__device__ void add_outer(TileSums<T>& sums, const T (&a)[4], const Four<T>& b) {
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[r][c] = multiply_add<is_fused>(a[r], b.x[c], sums[r][c]);
}

/// += A B with A[row][d] and B[d][column], d < depth; sums[r] is row TilePlace::row(r).
template <bool is_fused, class T>
__device__ void add_product(TileSums<T>& sums, const T* a, int a_stride, const T* b, int b_stride,
                            int depth) {
  const TilePlace place;
  a += place.first_row * a_stride;
  b += place.column;
  const int next = 4 * a_stride;
  int d = 0;
#pragma unroll 2
  for (; d + 4 <= depth; d += 4) {
    Four<T> rows[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) rows[r] = four_at(a + r * next + d);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const T column[4] = {rows[0].x[i], rows[1].x[i], rows[2].x[i], rows[3].x[i]};
      add_outer<is_fused>(sums, column, four_at(b + (d + i) * b_stride));
    }
  }
  for (; d < depth; ++d) {
    const T column[4] = {a[d], a[next + d], a[2 * next + d], a[3 * next + d]};
    add_outer<is_fused>(sums, column, four_at(b + d * b_stride));
  }
}

/// += A^T B with A[d][row] and B[d][column], d < depth; sums[r] is row TilePlace::transposed_row(r).
template <bool is_fused, class T>
__device__ void add_transposed_product(TileSums<T>& sums, const T* a, int a_stride, const T* b, int b_stride,
                                       int depth) {
  const TilePlace place;
  a += place.transposed_row(0);
  b += place.column;
#pragma unroll 4
  for (int d = 0; d < depth; ++d)
    add_outer<is_fused>(sums, four_at(a + d * a_stride).x, four_at(b + d * b_stride));
}

/// += A B^T with A[row][d] and B[column][d], d < depth; sums[r][c] is row TilePlace::row(r), column
/// TilePlace::apart_column(c).
template <bool is_fused, class T>
__device__ void add_product_of_rows(TileSums<T>& sums, const T* a, int a_stride, const T* b, int b_stride,
                                    int depth) {
  const TilePlace place;
  a += place.row(0) * a_stride;
  b += place.apart_column(0) * b_stride;
  const int next_row = 4 * a_stride, next_column = 8 * b_stride;
  int d = 0;
#pragma unroll 2
  for (; d + 4 <= depth; d += 4) {
    Four<T> rows[4], columns[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rows[i] = four_at(a + i * next_row + d);
      columns[i] = four_at(b + i * next_column + d);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const T row[4] = {rows[0].x[i], rows[1].x[i], rows[2].x[i], rows[3].x[i]};
      const Four<T> column = {columns[0].x[i], columns[1].x[i], columns[2].x[i], columns[3].x[i]};
      add_outer<is_fused>(sums, row, column);
    }
  }
  for (; d < depth; ++d) {
    const T row[4] = {a[d], a[next_row + d], a[2 * next_row + d], a[3 * next_row + d]};
    const Four<T> column = {b[d], b[next_column + d], b[2 * next_column + d], b[3 * next_column + d]};
    add_outer<is_fused>(sums, row, column);
  }
}

/// Columns of row `row` of a lower triangular chunk that are summed over: to the end of its block of 16 rows,
/// zeros included, as the CPU does.
__device__ inline int lower_depth(int row, int rows) {
  const int end = row / 16 * 16 + 16;
  return end < rows ? end : rows;
}

/// += A^T B for a lower triangular chunk A: row i of A^T has nothing before column i, and is summed from the
/// first row of its block of 16 on, zeros included, as the CPU does.
template <bool is_fused, class T>
__device__ void add_transposed_lower_product(TileSums<T>& sums, const T* a, int a_stride, const T* b,
                                             int b_stride, int rows) {
  const int from = TilePlace().warp_row();
  add_transposed_product<is_fused>(sums, a + from * a_stride, a_stride, b + from * b_stride, b_stride,
                                   rows - from);
}

/// Rows of `columns` elements, `stride` apart, of an array whose rows have `width` elements each: what
/// decides whether 16 bytes can be copied at once.
template <class T>
struct TileSource {
  const T* data;
  std::size_t stride;
  int width;
};

/// Copies `rows` x `columns` elements, from a column that is a multiple of 4, into a tile without waiting
/// (__pipeline_commit, __pipeline_wait_prior). A thread has four neighbours of every 16th row.
template <class T>
__device__ void copy_tile_async(T* tile, int tile_row, const TileSource<T>& source, int rows, int columns) {
  constexpr int wide = 16 / sizeof(T);
  const int column = static_cast<int>(threadIdx.x) % 16 * 4;
  const bool in_fours = source.width % 4 == 0;
  if (column >= columns) return;
  for (int row = static_cast<int>(threadIdx.x) / 16; row < rows; row += tile_threads / 16) {
    T* const target = tile + row * tile_row + column;
    const T* const from = source.data + row * source.stride + column;
    if (in_fours) {
#pragma unroll
      for (int i = 0; i < 4; i += wide) __pipeline_memcpy_async(target + i, from + i, 16);
    } else {
      for (int i = 0; i < 4 && column + i < columns; ++i)
        __pipeline_memcpy_async(target + i, from + i, sizeof(T));
    }
  }
}

}  // namespace kda_check::cuda
