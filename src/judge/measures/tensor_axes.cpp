#include "judge/measures/tensor_axes.hpp"

#include <algorithm>

#include "kda/problem/schema.hpp"

namespace kda_check::judge {

TensorAxes::TensorAxes(std::string_view name, const tensor::Shape& shape, bool state_v_first) {
  const std::size_t size = tensor::element_count(shape);
  const kda::TensorSpec* const spec = kda::find_spec(name);
  run = row_stride = std::max<std::size_t>(1, size);
  if (spec != nullptr && kda::has_rank(*spec, shape.size()) && size > 0) {
    const auto axes = kda::stored_axes(*spec, state_v_first);
    std::size_t stride = size;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (axis == 0 && spec->rank > 1) row_stride = stride / shape[0];
      stride /= shape[axis];
      const bool is_head = axes[axis] == kda::Axis::head || axes[axis] == kda::Axis::value_head;
      if (axes[axis] == kda::Axis::token)
        has_tokens = true, tokens = shape[axis], token_stride = run = stride;
      if (is_head && spec->rank > 1) has_heads = true, heads = shape[axis], head_stride = run = stride;
    }
  }
  windows_per_row = has_tokens ? (tokens + window_tokens - 1) / window_tokens : 1;
}

std::size_t TensorAxes::cell_row(std::size_t element) const {
  const std::size_t window = has_tokens ? element % row_stride / token_stride / window_tokens : 0;
  return element / row_stride * windows_per_row + window;
}

std::size_t TensorAxes::cell_row_end(std::size_t element) const {
  const std::size_t row = element / row_stride, row_end = (row + 1) * row_stride;
  if (!has_tokens) return row_end;
  const std::size_t window = element % row_stride / token_stride / window_tokens;
  return std::min(row_end, row * row_stride + (window + 1) * window_tokens * token_stride);
}

std::size_t TensorAxes::cells_end(std::size_t element) const {
  // Where the heads are outermost in a row, each is a cell of its own in one piece.
  if (!has_tokens && has_heads && head_stride * heads == row_stride) return (element / run + 1) * run;
  return cell_row_end(element);
}

std::size_t TensorAxes::strand(std::size_t element, std::span<const std::int64_t> cu_seqlens) const {
  std::size_t sequence = element / row_stride;
  if (has_tokens && !cu_seqlens.empty()) {
    const auto token = static_cast<std::int64_t>(element % row_stride / token_stride);
    sequence = static_cast<std::size_t>(std::ranges::upper_bound(cu_seqlens, token) - cu_seqlens.begin()) - 1;
  }
  return sequence * heads + head(element);
}

}  // namespace kda_check::judge
