#include "judge/measures/head_values.hpp"

#include <algorithm>
#include <cstdint>

#include "base/interruption.hpp"
#include "kda/kernels/table.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::judge {

namespace {

/// `stride`: of the columns.
template <class Value, class Element>
void read_row(const Element* from, std::size_t stride, std::size_t width, Value* to) {
  for (std::size_t v = 0; v < width; ++v) to[v] = static_cast<Value>(numeric::widen(from[v * stride]));
}

/// Asks for what is read soon: the next token of a head is far from it. It need not exist.
void prefetch(std::uintptr_t from, std::size_t bytes) {
  constexpr std::size_t line = 64;
  for (std::size_t at = 0; at < bytes; at += line)
    __builtin_prefetch(reinterpret_cast<const void*>(from + at));
}

}  // namespace

HeadRows::HeadRows(const void* elements, numeric::DType dtype, const RowLayout& layout, std::size_t head)
    : elements_(elements),
      dtype_(dtype),
      stored_as_(dtype),
      width_(layout.width),
      first_(layout.element(0, head, 0)),
      block_rows_(layout.block_rows),
      block_stride_(layout.block_stride),
      row_stride_(layout.row_stride),
      column_stride_(layout.column_stride) {}

HeadRows::HeadRows(const tensor::Tensor& tensor, const RowLayout& layout, std::size_t head)
    : HeadRows(tensor.data(), tensor.dtype(), layout, head) {}

HeadRows::HeadRows(std::span<const double> values, const RowLayout& layout, std::size_t head)
    : HeadRows(values.data(), numeric::DType::fp64, layout, head) {}

HeadRows::HeadRows(const TruthValues& values, const RowLayout& layout, std::size_t head)
    : HeadRows(values.visit([](auto elements) { return static_cast<const void*>(elements.data()); }),
               values.dtype(), layout, head) {}

template <class Value>
HeadRows::HeadRows(std::vector<Value> values, std::size_t width)
    : dtype_(sizeof(Value) == sizeof(double) ? numeric::DType::fp64 : numeric::DType::fp32),
      stored_as_(dtype_),
      width_(width),
      block_stride_(padded_width(width)) {
  const auto kept = std::make_shared<const std::vector<Value>>(std::move(values));
  elements_ = kept->data(), own_ = kept;
}
template HeadRows::HeadRows(std::vector<float>, std::size_t);
template HeadRows::HeadRows(std::vector<double>, std::size_t);

template <class Value>
void HeadRows::read(std::size_t row, Value* to) const {
  check_interruption();
  constexpr std::size_t rows_ahead = 3;
  const auto begin_of = [this](std::size_t r) {
    return first_ + r / block_rows_ * block_stride_ + r % block_rows_ * row_stride_;
  };
  const std::size_t at = begin_of(row), bytes = numeric::format_of(dtype_).bytes;
  if (column_stride_ == 1) {
    const auto elements = reinterpret_cast<std::uintptr_t>(elements_);
    prefetch(elements + begin_of(row + rows_ahead) * bytes, width_ * bytes);
    kda::kernels<Value>().widen(dtype_, static_cast<const std::byte*>(elements_) + at * bytes, to, width_);
  } else {
    numeric::visit_storage(dtype_, [&](auto tag) {
      read_row(static_cast<const decltype(tag)*>(elements_) + at, column_stride_, width_, to);
    });
  }
  std::fill(to + width_, to + padded_width(width_), Value{0});
  if (stored_as_ == dtype_) return;
  if constexpr (std::is_same_v<Value, float>) {
    const bool to_bf16 = stored_as_ == numeric::DType::bf16, to_fp16 = stored_as_ == numeric::DType::fp16;
    if (to_bf16 || to_fp16)
      kda::kernels<float>().round(to_bf16 ? kda::Rounding::bf16 : kda::Rounding::fp16, to, width_);
    return;
  }
  if (stored_as_ == numeric::DType::bf16)
    for (std::size_t v = 0; v < width_; ++v) to[v] = numeric::through_bf16(static_cast<float>(to[v]));
  if (stored_as_ == numeric::DType::fp16)
    for (std::size_t v = 0; v < width_; ++v) to[v] = numeric::through_fp16(static_cast<float>(to[v]));
}
template void HeadRows::read(std::size_t, float*) const;
template void HeadRows::read(std::size_t, double*) const;

template <class Value>
std::vector<Value> HeadRows::read_all(std::size_t rows) const {
  const std::size_t stride = padded_width(width_);
  std::vector<Value> values(rows * stride);
  for (std::size_t row = 0; row < rows; ++row) read(row, &values[row * stride]);
  return values;
}
template std::vector<float> HeadRows::read_all(std::size_t) const;
template std::vector<double> HeadRows::read_all(std::size_t) const;

}  // namespace kda_check::judge
