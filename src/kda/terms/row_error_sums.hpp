// The errors of answers in the rows of a tensor, added up on a GPU for many heads at once: what
// judge/spread/head_errors.hpp asks of rows. The bits of the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kda/terms/on_gpu.hpp"

namespace kda_check::kda {

/// Element (row, head, column) of a tensor: first + row / block_rows block_stride + row % block_rows
/// row_stride + head head_stride + column column_stride.
struct RowPlaces {
  std::size_t first, block_rows, block_stride, row_stride, head_stride, column_stride;
};

struct RowTensor {
  TensorOnGpu tensor;
  numeric::DType stored_as;  ///< how values are read, where that is coarser
  RowPlaces places;
};

struct RowErrorRequest {
  std::size_t rows = 0, heads = 0, width = 0;
  RowTensor truth;  ///< fp64
  std::vector<RowTensor> fields;
  /// Answers to a problem that is changed a little, by `step` of something.
  std::vector<RowTensor> directions;
  double step = 1;
  float largest_error = 0, largest_excess = 0;
  double storage_unit = 0;
  /// The first row of each row of tiles, and the number of rows.
  std::vector<std::uint32_t> tile_rows;
};

/// Arrays of numbers that nobody fills with zeros first.
template <class Number>
struct Numbers {
  std::unique_ptr<Number[]> values;
  std::size_t size = 0;

  Numbers() = default;
  explicit Numbers(std::size_t count)
      : values(std::make_unique_for_overwrite<Number[]>(count)), size(count) {}
  std::span<const Number> part(std::size_t number, std::size_t count) const {
    return {values.get() + number * count, count};
  }
};

/// In units of rows: of x^2, e^2 and e x.
struct RowProducts {
  Numbers<double> truth;          ///< [heads][rows]
  Numbers<float> squares, along;  ///< [fields][heads][rows]
};

/// The largest element of 16 rows, by energy.
struct LargestElement {
  double energy, share;
  std::uint64_t element;  ///< row * width + column
};

/// In units of envelopes. `stride`: the width in whole tiles, `tiles`: of a head.
struct RowSumsOfEnvelopes {
  Numbers<float> row_truth;                     ///< [heads][rows]
  Numbers<double> column_truth;                 ///< [heads][stride]
  Numbers<float> row_energy, row_along;         ///< [fields][heads][rows]
  Numbers<double> column_energy, column_along;  ///< [fields][heads][stride]
  Numbers<double> tile_energy;                  ///< [fields][heads][tiles]
  Numbers<LargestElement> largest;              ///< [fields][heads][rows in sixteens]
  /// In units of rows: d^2, d x and e d.
  Numbers<float> direction_squares, direction_truth;  ///< [directions][heads][rows]
  Numbers<float> along_directions;                    ///< [fields][directions][heads][rows]
  Numbers<int> is_finite;                             ///< [directions][heads]
};

class RowErrorSums {
 public:
  virtual ~RowErrorSums() = default;
  /// Of the truth, by head and row: the largest value that is a number.
  virtual Numbers<double> largest() = 0;
  /// `units`: of heads and rows, powers of two.
  virtual RowProducts products(std::span<const double> units) = 0;
  /// `weights`: of energies, [fields][heads][rows]; `of_all`: of slopes, [heads][rows].
  virtual RowSumsOfEnvelopes sums(std::span<const float> weights, std::span<const float> of_all) = 0;
};

// These throw Error{environment} where the GPU fails or lacks memory.

std::unique_ptr<RowErrorSums> row_errors_on_gpu(RowErrorRequest request);
TensorOnGpu uploaded(numeric::DType dtype, const void* data, std::size_t elements);
/// For doubles that go up part by part: elements [begin, begin + count).
TensorOnGpu room_on_gpu(std::size_t elements);
void upload_part(const TensorOnGpu& to, std::size_t begin, std::size_t count, const double* values);

}  // namespace kda_check::kda
