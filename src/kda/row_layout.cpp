#include "kda/row_layout.hpp"

#include <algorithm>
#include <bit>
#include <vector>

namespace kda_check::kda {

namespace {

constexpr std::size_t warp_threads = 32, recurrent_warps = 4, recurrent_columns = 32;

/// Triton's blocked encoding: threads are handed out from the last dimension, the fastest, on; of the axis
/// that is summed over a row has what it needs, and what is beyond has the same elements once more.
RowLayout blocked(const std::vector<std::size_t>& shape, std::size_t registers_of_last, std::size_t warps,
                  std::size_t axis) {
  std::size_t threads = warp_threads * warps, lanes_left = warp_threads, warps_left = warps;
  RowLayout layout;
  for (std::size_t d = shape.size(); d-- > 0;) {
    const std::size_t registers = d + 1 == shape.size() ? registers_of_last : 1;
    const std::size_t of_dimension =
        d > 0 ? std::min(threads, std::max<std::size_t>(1, shape[d] / registers)) : threads;
    const std::size_t lanes = std::min(of_dimension, lanes_left);
    const std::size_t of_warps = std::min(std::max<std::size_t>(of_dimension / lanes, 1), warps_left);
    if (d == axis) {
      layout.registers = std::min(registers, shape[d]);
      layout.lanes = std::min(lanes, shape[d] / layout.registers);
      layout.warps = std::min(of_warps, shape[d] / (layout.registers * layout.lanes));
    }
    threads /= of_dimension, lanes_left /= lanes, warps_left /= of_warps;
  }
  return layout;
}

/// How many elements of a stored row a thread loads at once: 16 bytes, where a row of `stride` elements is
/// aligned to that and all threads have some of the `elements` of a block.
std::size_t registers_for(numeric::DType dtype, std::size_t stride, std::size_t width, std::size_t warps,
                          std::size_t elements) {
  return std::max<std::size_t>(1, std::min({16 / numeric::format_of(dtype).bytes, stride & (~stride + 1),
                                            width, elements / (warp_threads * warps)}));
}

RowLayout stored_rows(std::size_t K, numeric::DType dtype, std::size_t rows, std::size_t warps) {
  const std::size_t width = std::bit_ceil(K);
  return blocked({rows, width}, registers_for(dtype, K, width, warps, rows * width), warps, 1);
}

void add_new(std::vector<RowLayout>& layouts, const RowLayout& layout) {
  if (std::ranges::find(layouts, layout) == layouts.end()) layouts.push_back(layout);
}

constexpr std::size_t scans[] = {4, 2};

}  // namespace

std::vector<RowLayout> norm_layouts(std::size_t K, numeric::DType dtype) {
  std::vector<RowLayout> layouts;
  for (const std::size_t rows : {128, 64, 32, 16, 8})
    for (const std::size_t warps : {1, 2, 4, 8, 16}) add_new(layouts, stored_rows(K, dtype, rows, warps));
  return layouts;
}

std::vector<RowLayout> pair_layouts(std::size_t K, numeric::DType dtype) {
  std::vector<RowLayout> layouts;
  for (const std::size_t heads : {8, 4, 2, 1})
    for (const std::size_t warps : {1, 2, 4, 8}) add_new(layouts, stored_rows(K, dtype, heads, warps));
  return layouts;
}

std::vector<RowLayout> substitution_layouts(numeric::DType dtype, bool by_pairs) {
  if (!by_pairs) return {{1, 8, 1}};
  return {{1, dtype == numeric::DType::fp32 ? 8U : 16U, 1}, {1, 8, 2}, {1, 4, 4}};
}

std::span<const std::size_t> scan_rows() { return scans; }

RowLayout recurrent_norm_layout(std::size_t K, numeric::DType dtype) {
  const std::size_t width = std::bit_ceil(K);
  return blocked({width}, registers_for(dtype, K, width, recurrent_warps, width), recurrent_warps, 0);
}

RowLayout recurrent_state_layout(std::size_t K, std::size_t V, bool v_first,
                                 const numeric::DType* initial_state) {
  const std::size_t rows = std::bit_ceil(K);
  const std::vector<std::size_t> shape =
      v_first ? std::vector{recurrent_columns, rows} : std::vector{rows, recurrent_columns};
  std::size_t registers = 1;
  if (initial_state != nullptr)
    registers =
        registers_for(*initial_state, v_first ? K : V, shape[1], recurrent_warps, rows * recurrent_columns);
  return blocked(shape, registers, recurrent_warps, v_first ? 1 : 0);
}

}  // namespace kda_check::kda
