#include "kda/arithmetic/row_layout.hpp"

#include <algorithm>
#include <bit>
#include <vector>

namespace kda_check::kda {

namespace {

constexpr std::size_t warp_threads = 32;

/// Triton's blocked encoding: what each dimension has. Threads are handed out from the last one, the fastest,
/// on.
std::vector<RowLayout> handed_out(const std::vector<std::size_t>& shape, std::size_t registers_of_last,
                                  std::size_t warps) {
  std::size_t threads = warp_threads * warps, lanes_left = warp_threads, warps_left = warps;
  std::vector<RowLayout> layouts(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    const std::size_t registers = d + 1 == shape.size() ? registers_of_last : 1;
    const std::size_t of_dimension =
        d > 0 ? std::min(threads, std::max<std::size_t>(1, shape[d] / registers)) : threads;
    const std::size_t lanes = std::min(of_dimension, lanes_left);
    const std::size_t of_warps = std::min(std::max<std::size_t>(of_dimension / lanes, 1), warps_left);
    layouts[d] = {registers, lanes, of_warps};
    threads /= of_dimension, lanes_left /= lanes, warps_left /= of_warps;
  }
  return layouts;
}

/// Of the axis that is summed over a row has what it needs; what is beyond has the same elements once more.
RowLayout blocked(const std::vector<std::size_t>& shape, std::size_t registers_of_last, std::size_t warps,
                  std::size_t axis) {
  RowLayout layout = handed_out(shape, registers_of_last, warps)[axis];
  layout.registers = std::min(layout.registers, shape[axis]);
  layout.lanes = std::min(layout.lanes, shape[axis] / layout.registers);
  layout.warps = std::min(layout.warps, shape[axis] / (layout.registers * layout.lanes));
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
constexpr WyBlock blocks_of_wy[] = {{64, 64, 4},  {32, 64, 2},  {64, 64, 2},
                                    {32, 128, 2}, {64, 128, 2}, {64, 128, 4}};
constexpr std::size_t warps_of_intra[] = {1, 2, 4, 8}, warps_of_gates[] = {4, 8, 16, 32};
constexpr std::size_t intra_rows = 16, intra_channels = 32;
/// Rows of a tile of a tensor core, and neighbouring columns and the lanes that have a row of it.
constexpr std::size_t tile_rows = 16, tile_columns = 2, tile_lanes = 4;

/// Of a token form.
std::vector<std::size_t> shape_of(const StateBlock& block) {
  const std::size_t rows = std::bit_ceil(block.K), columns = block.program.columns;
  return block.v_first ? std::vector{columns, rows} : std::vector{rows, columns};
}
std::size_t registers_of(const StateBlock& block) {
  if (block.dtype == nullptr) return 1;
  const std::vector<std::size_t> shape = shape_of(block);
  return registers_for(*block.dtype, block.v_first ? block.K : block.V, shape[1], block.program.warps,
                       shape[0] * shape[1]);
}

/// h dh, [keys][values] of a state as it is stored. A square tile of a whole chunk's side shares its layout
/// with others that are loaded, and is as aligned as these.
RowLayout state_products(const GradientShape& shape, const WyBlock& block) {
  const std::size_t elements = block.keys * block.values;
  const bool is_square = block.keys == shape.chunk_rows && block.values == shape.chunk_rows;
  const auto registers = [&](std::size_t stride, std::size_t width) {
    return registers_for(shape.dtype, stride, width, block.warps, elements);
  };
  if (!shape.v_first)
    return blocked({block.keys, block.values}, registers(is_square ? block.values : shape.V, block.values),
                   block.warps, 1);
  constexpr std::size_t least = 4;
  const std::size_t of_keys = registers(shape.K, block.keys);
  return blocked({block.values, block.keys},
                 is_square ? std::max({of_keys, registers(shape.V, block.keys), least}) : of_keys,
                 block.warps, 0);
}

}  // namespace

NormHalves norm_halves(const RowLayout& norm, std::size_t K) {
  const bool has_halves = norm.registers == 1 && norm.warps == 1 && norm.lanes > 1 && K <= norm.lanes;
  return {has_halves ? norm.lanes / 2 : 0, 0};
}

RowLayout lane_layout(std::size_t K) {
  constexpr std::size_t lanes = 16;
  return {std::max<std::size_t>(1, std::bit_ceil(K) / lanes), lanes, 1};
}

RowLayout paired_norm_layout(std::size_t K) {
  return {std::max<std::size_t>(1, std::bit_ceil(K) / warp_threads), warp_threads, 1, OwnSum::pairs};
}

RowLayout paired_columns_layout(std::size_t K) {
  constexpr std::size_t neighbours = 8;  // 16 bytes of bf16
  return {neighbours, std::clamp<std::size_t>(std::bit_ceil(K) / neighbours, 1, warp_threads), 1,
          OwnSum::alternating};
}

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
std::span<const WyBlock> wy_blocks() { return blocks_of_wy; }
std::span<const std::size_t> intra_warps() { return warps_of_intra; }
std::span<const std::size_t> gate_warps() { return warps_of_gates; }

GradientLayouts gradient_layouts(const GradientShape& shape, const WyBlock& block, std::size_t intra_warps) {
  const bool is_narrow = numeric::format_of(shape.dtype).bytes == 2;
  // Warps lie on the columns of a tile that is wider than the chunk is high, where a product in a loop has
  // such tiles; but not where four of them take 64 rows together.
  const bool is_high = block.warps == 4 && shape.chunk_rows == 4 * tile_rows;
  const bool loops_keys = shape.K > block.keys, loops_values = shape.V > block.values;
  const bool wide_values = !is_high && block.values > shape.chunk_rows && (loops_keys || loops_values),
             wide_keys = !is_high && block.keys > shape.chunk_rows && loops_keys,
             wide_rows = loops_keys ? wide_keys : wide_values;
  const auto row_of_tile = [&](bool is_wide) {
    return RowLayout{tile_columns, tile_lanes, is_wide ? block.warps : 1};
  };
  GradientLayouts layouts;
  layouts.keys = block.keys, layouts.values = block.values;
  layouts.states = state_products(shape, block);
  layouts.packs_states = !shape.v_first;
  layouts.fuses_states = is_narrow && shape.V <= block.values;
  layouts.value_rows = row_of_tile(wide_values), layouts.key_rows = row_of_tile(wide_keys);
  layouts.chunk_rows = std::max(std::bit_ceil(shape.chunk_rows), tile_rows);
  layouts.row_warps = wide_rows ? 1 : std::min(block.warps, layouts.chunk_rows / tile_rows);
  const bool is_short = shape.K <= intra_channels / 2;
  layouts.channels = is_short ? intra_channels / 2 : intra_channels;
  const std::size_t elements = intra_rows * layouts.channels;
  layouts.pair_rows =
      shape.by_pairs
          ? blocked({intra_rows, layouts.channels},
                    registers_for(shape.dtype, shape.K, layouts.channels, intra_warps, elements), intra_warps,
                    1)
          : RowLayout{tile_columns, tile_lanes, is_short ? 1 : std::min<std::size_t>(intra_warps, 4)};
  return layouts;
}

GateLayouts gate_layouts(std::size_t K, numeric::DType dtype, std::size_t warps) {
  const std::size_t width = std::bit_ceil(K);
  const std::size_t registers = registers_for(dtype, K, width, warps, gate_rows * width);
  return {blocked({gate_rows, width}, registers, warps, 1), blocked({gate_rows, width}, registers, warps, 0)};
}

RowLayout recurrent_norm_layout(std::size_t K, numeric::DType dtype, const TokenProgram& program) {
  const std::size_t width = std::bit_ceil(K);
  return blocked({width}, registers_for(dtype, K, width, program.warps, width), program.warps, 0);
}

RowLayout recurrent_state_layout(const StateBlock& block) {
  return blocked(shape_of(block), registers_of(block), block.program.warps, block.v_first ? 1 : 0);
}

NormHalves recurrent_norm_halves(const RowLayout& norm, const StateBlock& block) {
  const std::size_t half = norm_halves(norm, block.K).rows;  // lanes
  if (half == 0) return {};
  const std::vector<RowLayout> layouts =
      handed_out(shape_of(block), registers_of(block), block.program.warps);
  const bool is_in_last = half < layouts[1].lanes;
  const std::size_t neighbours = is_in_last ? layouts[1].registers * half : half / layouts[1].lanes;
  return is_in_last == block.v_first ? NormHalves{neighbours, 0} : NormHalves{0, neighbours};
}

}  // namespace kda_check::kda
