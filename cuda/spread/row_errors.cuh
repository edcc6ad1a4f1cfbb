// The kernels of row_errors.cu. Blocks of rows have sixteen threads a row: (rows in sixteens, heads, fields);
// the others a thread for each sum.
#pragma once

#include <cfloat>

#include "cuda/problem/problem.cuh"
#include "kda/kernels/elements/row_error_rules.hpp"
#include "kda/terms/row_error_sums.hpp"

namespace kda_check::cuda {

constexpr int row_lanes = 16, row_threads = row_lanes * row_lanes;
constexpr int column_rows = 64;  ///< that a column adds up in fp32
constexpr int column_threads = 128;

struct PlacedTensor {
  Tensor tensor;
  kda::Rounding rounding = kda::Rounding::none;
  kda::RowPlaces places;

  template <class T>
  __device__ T read(int head, int row, int column) const {
    const auto r = static_cast<std::size_t>(row);
    const T x = load<T>(tensor, places.first + r / places.block_rows * places.block_stride +
                                    r % places.block_rows * places.row_stride +
                                    static_cast<std::size_t>(head) * places.head_stride +
                                    static_cast<std::size_t>(column) * places.column_stride);
    return kda::rounded(rounding, x);
  }
};

struct RowErrorProblem {
  int rows, heads, width, across, fields, directions, tile_row_count;
  float largest_error, largest_excess;
  double storage_unit, per_step;
  PlacedTensor truth;
  const PlacedTensor *field, *direction;
  const std::uint32_t* tile_rows;  ///< [tile_row_count + 1]
  const double* units;             ///< [heads][rows]
  const float *weights, *weights_along;

  __host__ __device__ int stride() const { return across * row_lanes; }
  __host__ __device__ int tiles_of_head() const { return tile_row_count * across; }
  /// Of an array by head and row.
  __device__ std::size_t at(int head, int row) const { return std::size_t(head) * rows + row; }
  /// ... of several.
  __device__ std::size_t at(int which, int head, int row) const {
    return (std::size_t(which) * heads + head) * rows + row;
  }
  __device__ double exact(int head, int row, int column) const {
    return column < width ? truth.read<double>(head, row, column) : 0.0;
  }
  __device__ float value(const PlacedTensor& of, int head, int row, int column) const {
    return column < width ? of.read<float>(head, row, column) : 0.0F;
  }
  __device__ float truth_in(double exact, double unit) const { return static_cast<float>(exact * unit); }
  /// Of a weight of slopes, as an energy has it.
  __device__ double weight_of_truth(int head, int row) const {
    const auto weight = static_cast<double>(weights_along[at(head, row)]);
    return weight * weight;
  }
};

/// What a thread of a block of rows is for. All threads go along to the end, those beyond the last row too.
struct RowThread {
  int head, row, lane;
  bool is_row;

  __device__ explicit RowThread(const RowErrorProblem& p)
      : head(static_cast<int>(blockIdx.y)),
        row(static_cast<int>(blockIdx.x * row_lanes + threadIdx.x / row_lanes)),
        lane(static_cast<int>(threadIdx.x % row_lanes)),
        is_row(row < p.rows) {
    if (!is_row) row = p.rows - 1;
  }
  __device__ bool writes() const { return is_row && lane == 0; }
};

/// The sum over the lanes of a row, from the first on, added to `sum`.
template <class T>
__device__ T plus_lanes(T sum, T x) {
#pragma unroll
  for (int lane = 0; lane < row_lanes; ++lane) sum += __shfl_sync(whole_warp, x, lane, row_lanes);
  return sum;
}

__global__ void largest_kernel(const __grid_constant__ RowErrorProblem p, double* largest) {
  const RowThread t(p);
  double most = 0;
  for (int v = t.lane; v < p.width; v += row_lanes)
    if (const double x = fabs(p.exact(t.head, t.row, v)); x <= DBL_MAX) most = fmax(most, x);
  for (int away = row_lanes / 2; away > 0; away /= 2)
    most = fmax(most, __shfl_xor_sync(whole_warp, most, away, row_lanes));
  if (t.writes()) largest[p.at(t.head, t.row)] = most;
}

__global__ void truth_squares_kernel(const __grid_constant__ RowErrorProblem p, double* squares) {
  const RowThread t(p);
  const double unit = p.units[p.at(t.head, t.row)];
  double sum = 0;
  for (int v = t.lane; v < p.stride(); v += row_lanes) {
    const auto x = static_cast<double>(p.truth_in(p.exact(t.head, t.row, v), unit));
    sum = plus_lanes(sum, x * x);
  }
  if (t.writes()) squares[p.at(t.head, t.row)] = sum;
}

__global__ void products_kernel(const __grid_constant__ RowErrorProblem p, float* squares, float* along) {
  const RowThread t(p);
  const int f = static_cast<int>(blockIdx.z);
  const PlacedTensor field = p.field[f];
  const double unit = p.units[p.at(t.head, t.row)];
  float of_squares = 0, of_slopes = 0;
  for (int v = t.lane; v < p.stride(); v += row_lanes) {
    const double exact = p.exact(t.head, t.row, v);
    const float error = kda::error_of(p.value(field, t.head, t.row, v), exact, unit, p.largest_error);
    of_squares += error * error, of_slopes += error * p.truth_in(exact, unit);
  }
  of_squares = plus_lanes(0.0F, of_squares), of_slopes = plus_lanes(0.0F, of_slopes);
  if (!t.writes()) return;
  squares[p.at(f, t.head, t.row)] = of_squares, along[p.at(f, t.head, t.row)] = of_slopes;
}

/// The first of the largest.
__device__ inline bool is_before(const kda::LargestElement& a, const kda::LargestElement& b) {
  return a.energy > b.energy || (a.energy == b.energy && a.element < b.element);
}

__global__ void sums_kernel(const __grid_constant__ RowErrorProblem p, float* row_energy, float* row_along,
                            float* of_tiles, kda::LargestElement* largest) {
  __shared__ kda::LargestElement found[row_threads];
  const RowThread t(p);
  const int f = static_cast<int>(blockIdx.z);
  const PlacedTensor field = p.field[f];
  const double unit = p.units[p.at(t.head, t.row)];
  const std::size_t at = p.at(f, t.head, t.row);
  const float weight = p.weights[at], of_slopes = p.weights_along[p.at(t.head, t.row)],
              along_weight = of_slopes * of_slopes;
  float along = 0;
  double energy_of_row = 0;
  kda::LargestElement mine{0, 0, 0};
  for (int tile = 0; tile < p.across; ++tile) {
    const int v = tile * row_lanes + t.lane;
    const double exact = p.exact(t.head, t.row, v);
    const float truth = p.truth_in(exact, unit),
                error = kda::error_of(p.value(field, t.head, t.row, v), exact, unit, p.largest_error),
                excess = kda::excess_of(error, weight, p.largest_excess), square = excess * excess;
    along += kda::slope_of(error, truth, along_weight);
    const float of_tile = plus_lanes(0.0F, square);
    energy_of_row += static_cast<double>(of_tile);
    if (t.writes()) of_tiles[at * static_cast<std::size_t>(p.across) + tile] = of_tile;
    if (!t.is_row || !(of_tile == of_tile)) continue;
    const auto share = static_cast<double>(square);
    const double energy = kda::element_energy(share, truth, weight, p.storage_unit);
    if (energy > mine.energy) mine = {energy, share, std::uint64_t(t.row) * p.width + v};
  }
  along = plus_lanes(0.0F, along);
  if (t.writes()) row_energy[at] = static_cast<float>(energy_of_row), row_along[at] = along;
  found[threadIdx.x] = mine;
  for (int half = row_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half && is_before(found[threadIdx.x + half], found[threadIdx.x]))
      found[threadIdx.x] = found[threadIdx.x + half];
  }
  if (threadIdx.x == 0) largest[(std::size_t(f) * p.heads + t.head) * gridDim.x + blockIdx.x] = found[0];
}

__global__ void row_truth_kernel(const __grid_constant__ RowErrorProblem p, float* row_truth) {
  const RowThread t(p);
  const double unit = p.units[p.at(t.head, t.row)], weight = p.weight_of_truth(t.head, t.row);
  double sum = 0;
  for (int v = t.lane; v < p.stride(); v += row_lanes) {
    const auto x = static_cast<double>(p.truth_in(p.exact(t.head, t.row, v), unit));
    sum = plus_lanes(sum, x * x * weight);
  }
  if (t.writes()) row_truth[p.at(t.head, t.row)] = static_cast<float>(sum);
}

/// A thread for each column of a head.
__global__ void column_truth_kernel(const __grid_constant__ RowErrorProblem p, double* column_truth) {
  const std::size_t i = std::size_t{blockIdx.x} * column_threads + threadIdx.x;
  if (i >= std::size_t(p.heads) * p.stride()) return;
  const int head = static_cast<int>(i / p.stride()), v = static_cast<int>(i % p.stride());
  double sum = 0;
#pragma unroll 8
  for (int row = 0; row < p.rows; ++row) {
    const auto x = static_cast<double>(p.truth_in(p.exact(head, row, v), p.units[p.at(head, row)]));
    sum += x * x * p.weight_of_truth(head, row);
  }
  column_truth[i] = sum;
}

/// Pieces of rows, [fields][heads][pieces][stride].
__global__ void columns_kernel(const __grid_constant__ RowErrorProblem p, float* energy, float* along) {
  const int head = static_cast<int>(blockIdx.y), f = static_cast<int>(blockIdx.z),
            first = static_cast<int>(blockIdx.x) * column_rows, last = min(p.rows, first + column_rows);
  const PlacedTensor field = p.field[f];
  const std::size_t piece = (std::size_t(f) * p.heads + head) * gridDim.x + blockIdx.x;
  for (int v = static_cast<int>(threadIdx.x); v < p.stride(); v += column_threads) {
    float of_squares = 0, of_slopes = 0;
    for (int row = first; row < last; ++row) {
      const double exact = p.exact(head, row, v), unit = p.units[p.at(head, row)];
      const float error = kda::error_of(p.value(field, head, row, v), exact, unit, p.largest_error),
                  excess = kda::excess_of(error, p.weights[p.at(f, head, row)], p.largest_excess),
                  weight = p.weights_along[p.at(head, row)];
      of_squares += excess * excess;
      of_slopes += kda::slope_of(error, p.truth_in(exact, unit), weight * weight);
    }
    energy[piece * p.stride() + v] = of_squares, along[piece * p.stride() + v] = of_slopes;
  }
}
__global__ void fold_columns_kernel(const __grid_constant__ RowErrorProblem p, const float* pieces_energy,
                                    const float* pieces_along, double* energy, double* along) {
  const std::size_t i = std::size_t{blockIdx.x} * column_threads + threadIdx.x;
  if (i >= std::size_t(p.fields) * p.heads * p.stride()) return;
  const int pieces = (p.rows + column_rows - 1) / column_rows;
  const std::size_t first = i / p.stride() * pieces * p.stride() + i % p.stride();
  double of_squares = 0, of_slopes = 0;
  for (int piece = 0; piece < pieces; ++piece) {
    of_squares += static_cast<double>(pieces_energy[first + std::size_t(piece) * p.stride()]);
    of_slopes += static_cast<double>(pieces_along[first + std::size_t(piece) * p.stride()]);
  }
  energy[i] = of_squares, along[i] = of_slopes;
}
__global__ void fold_tiles_kernel(const __grid_constant__ RowErrorProblem p, const float* of_tiles,
                                  double* energy) {
  const std::size_t i = std::size_t{blockIdx.x} * column_threads + threadIdx.x,
                    tiles = static_cast<std::size_t>(p.tiles_of_head());
  if (i >= std::size_t(p.fields) * p.heads * tiles) return;
  const std::size_t of_head = i / tiles, tile = i % tiles;
  double sum = 0;
  for (std::uint32_t row = p.tile_rows[tile / p.across]; row < p.tile_rows[tile / p.across + 1]; ++row)
    sum += static_cast<double>(of_tiles[(of_head * p.rows + row) * p.across + tile % p.across]);
  energy[i] = sum;
}

/// What the answer changes by, in the unit of a row. `change`: before that.
__device__ inline float change_of(const RowErrorProblem& p, const PlacedTensor& direction, int head, int row,
                                  int v, double exact, double unit, float& change) {
  const double moved = v < p.width ? direction.read<double>(head, row, v) : 0.0;
  change = static_cast<float>((moved - exact) * p.per_step);
  return static_cast<float>(static_cast<double>(change) * unit);
}

__global__ void directions_kernel(const __grid_constant__ RowErrorProblem p, float* squares, float* truth,
                                  int* is_finite) {
  const RowThread t(p);
  const int n = static_cast<int>(blockIdx.z);
  const PlacedTensor direction = p.direction[n];
  const double unit = p.units[p.at(t.head, t.row)];
  float of_squares = 0, of_truth = 0;
  for (int v = t.lane; v < p.stride(); v += row_lanes) {
    const double exact = p.exact(t.head, t.row, v);
    float change;
    const float d = change_of(p, direction, t.head, t.row, v, exact, unit, change);
    if (!(fabsf(change) <= FLT_MAX)) is_finite[n * p.heads + t.head] = 0;
    of_squares += d * d, of_truth += d * p.truth_in(exact, unit);
  }
  of_squares = plus_lanes(0.0F, of_squares), of_truth = plus_lanes(0.0F, of_truth);
  if (!t.writes()) return;
  squares[p.at(n, t.head, t.row)] = of_squares, truth[p.at(n, t.head, t.row)] = of_truth;
}

__global__ void along_directions_kernel(const __grid_constant__ RowErrorProblem p, float* along) {
  const RowThread t(p);
  const int f = static_cast<int>(blockIdx.z) / p.directions, n = static_cast<int>(blockIdx.z) % p.directions;
  const PlacedTensor direction = p.direction[n], field = p.field[f];
  const double unit = p.units[p.at(t.head, t.row)];
  float sum = 0;
  for (int v = t.lane; v < p.stride(); v += row_lanes) {
    const double exact = p.exact(t.head, t.row, v);
    float change;
    const float d = change_of(p, direction, t.head, t.row, v, exact, unit, change),
                error = kda::error_of(p.value(field, t.head, t.row, v), exact, unit, p.largest_error);
    sum += d * error;
  }
  sum = plus_lanes(0.0F, sum);
  if (t.writes()) along[p.at(static_cast<int>(blockIdx.z), t.head, t.row)] = sum;
}

}  // namespace kda_check::cuda
