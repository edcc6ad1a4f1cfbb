// One head of tensors as rows of columns, which errors are added up in: read where they lie, a row at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "judge/measures/regions.hpp"
#include "judge/measures/truth_values.hpp"

namespace kda_check::judge {

class HeadRows {
 public:
  /// Head `head` of a tensor with that layout, which must stay.
  HeadRows(const tensor::Tensor& tensor, const RowLayout& layout, std::size_t head);
  HeadRows(const TruthValues& values, const RowLayout& layout, std::size_t head);
  HeadRows(std::span<const double> values, const RowLayout& layout, std::size_t head);
  /// [rows][padded_width(width)], kept; float or double.
  template <class Value>
  HeadRows(std::vector<Value> values, std::size_t width);

  /// From now on every value is read as a tensor of that element type would hold it; of a finer type than the
  /// tensor's nothing is to be had.
  void store_as(numeric::DType dtype) { stored_as_ = dtype; }

  /// padded_width values, zeros behind the columns; float or double.
  template <class Value>
  void read(std::size_t row, Value* to) const;
  /// All rows, one behind the other; float or double.
  template <class Value>
  std::vector<Value> read_all(std::size_t rows) const;

 private:
  HeadRows(const void* elements, numeric::DType dtype, const RowLayout& layout, std::size_t head);

  std::shared_ptr<const void> own_ = {};  ///< what is kept
  const void* elements_;
  numeric::DType dtype_, stored_as_;
  std::size_t width_, first_ = 0, block_rows_ = 1, block_stride_, row_stride_ = 0, column_stride_ = 1;
};

/// How what a head answers changes with something, per unit of that: a slope along it is a region of its own.
/// Told by the answer where there is a `step`, a power of two, more of it. One that is not finite is none.
struct Direction {
  Region region;
  HeadRows answer;
  double step;
};

/// The truth and every field: the twins, then the answers. Fields have fp32 or fewer bits.
struct HeadValues {
  HeadRows truth;
  std::vector<HeadRows> fields = {};
  std::vector<Direction> directions = {};
};

}  // namespace kda_check::judge
