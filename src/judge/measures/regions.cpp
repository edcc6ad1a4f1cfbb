#include "judge/measures/regions.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kda_check::judge {

namespace {

constexpr std::size_t window_rows = 8;

std::size_t cells_of(std::size_t length, std::size_t size) { return (length + size - 1) / size; }

}  // namespace

RowLayout row_layout(std::string_view name, const tensor::Shape& shape, const kda::Problem& problem,
                     std::size_t chunk_size) {
  const kda::TensorSpec* const spec = kda::find_spec(name);
  RowLayout layout;
  if (spec == nullptr || spec->rank == 0) return layout;
  if (spec->is_state) {
    constexpr std::size_t tile = 16;
    const kda::Dimensions& d = problem.dimensions();
    const bool v_first = problem.options.state_v_first, of_checkpoints = spec->has(kda::Axis::checkpoint);
    const std::size_t states = of_checkpoints ? d.checkpoints : d.N;
    layout = {states * d.K, d.HV, d.V, tile, {}, false};
    layout.of_checkpoints = of_checkpoints;
    layout.block_rows = d.K, layout.block_stride = d.HV * d.K * d.V, layout.head_stride = d.K * d.V;
    layout.row_stride = v_first ? 1 : d.V, layout.column_stride = v_first ? d.K : 1;
    for (std::size_t n = 0; n < states; ++n) layout.starts.push_back(n * d.K), layout.numbers.push_back(n);
    layout.starts.push_back(states * d.K);
    return layout;
  }
  if (spec->axes[0] != kda::Axis::batch || spec->axes[1] != kda::Axis::token) return layout;
  const std::size_t width = shape.size() > 3 ? shape[3] : 1;
  layout = {shape[0] * shape[1], shape[2], width, chunk_size, {}, true};
  layout.block_rows = std::max<std::size_t>(1, layout.rows);
  layout.row_stride = shape[2] * width, layout.head_stride = width;
  for (const kda::Sequence& sequence : problem.sequences()) {  // in the order of their rows
    if (sequence.length() == 0) continue;
    layout.starts.push_back(sequence.batch * problem.dimensions().T + sequence.begin);
    layout.numbers.push_back(sequence.index);
  }
  layout.starts.push_back(layout.rows);
  return layout;
}

RowLayout RowLayout::with_heads(std::size_t count) const {
  RowLayout layout = *this;
  layout.heads = count;
  (of_tokens ? layout.row_stride : layout.block_stride) = count * head_stride;
  return layout;
}

std::vector<RowCells> row_cells(const RowLayout& layout) {
  const std::size_t R = layout.rows;
  std::vector<std::uint32_t> row(R), sequence(R), position(R), position_in_16(R), chunk(R), window(R),
      edge(R);
  std::uint32_t chunks = 0, windows = 0;
  for (std::size_t n = 0; n + 1 < layout.starts.size(); ++n) {
    const std::size_t begin = layout.starts[n], length = layout.starts[n + 1] - begin;
    for (std::size_t p = 0; p < length; ++p) {
      const std::size_t r = begin + p;
      row[r] = static_cast<std::uint32_t>(r);
      sequence[r] = static_cast<std::uint32_t>(n);
      position[r] = static_cast<std::uint32_t>(p % layout.chunk);
      position_in_16[r] = static_cast<std::uint32_t>(p % tile_side);
      chunk[r] = chunks + static_cast<std::uint32_t>(p / layout.chunk);
      window[r] = windows + static_cast<std::uint32_t>(p / window_rows);
      edge[r] = p == 0 ? 0 : p + 1 == length ? 1 : no_cell;
    }
    chunks += static_cast<std::uint32_t>(cells_of(length, layout.chunk));
    windows += static_cast<std::uint32_t>(cells_of(length, window_rows));
  }
  std::vector<RowCells> list;
  const auto add = [&](std::optional<Region> of_head, std::optional<Region> of_all,
                       std::vector<std::uint32_t> cell) {
    std::size_t count = 0;
    for (const std::uint32_t c : cell)
      if (c != no_cell) count = std::max<std::size_t>(count, c + 1);
    list.push_back({of_head, of_all, std::move(cell), count});
  };
  add(Region::row, Region::token, std::move(row));
  add(Region::position_of_head, Region::position, std::move(position));
  add(Region::window_of_head, {}, std::move(window));
  add(Region::chunk_of_head, Region::chunk, std::move(chunk));
  if (layout.starts.size() > 2) add(Region::sequence_of_head, Region::sequence, std::move(sequence));
  add(Region::head, {}, std::vector<std::uint32_t>(R, 0));
  if (layout.chunk != tile_side) add({}, Region::position_in_16, std::move(position_in_16));
  add({}, Region::edge, std::move(edge));
  return list;
}

Tiles tiles_of(const RowLayout& layout) {
  Tiles tiles;
  tiles.across = cells_of(layout.width, tile_side);
  tiles.row_of_tiles.resize(layout.rows);
  std::size_t down = 0;
  for (std::size_t n = 0; n + 1 < layout.starts.size(); ++n) {
    const std::size_t begin = layout.starts[n], end = layout.starts[n + 1];
    for (std::size_t r = begin; r < end; ++r)
      tiles.row_of_tiles[r] = static_cast<std::uint32_t>(down + (r - begin) / tile_side);
    down += cells_of(end - begin, tile_side);
  }
  tiles.elements.assign(down * tiles.across, 0.0);
  for (std::size_t r = 0; r < layout.rows; ++r)
    for (std::size_t v = 0; v < layout.columns(r); ++v)
      tiles.elements[tiles.row_of_tiles[r] * tiles.across + v / tile_side] += 1;
  return tiles;
}

std::vector<RowPlace> rows_in(Region region, std::size_t head, std::size_t cell, const RowLayout& layout,
                              std::size_t most) {
  std::vector<RowPlace> places;
  const auto take = [&](const std::vector<std::uint32_t>& cells, std::size_t first, std::size_t last) {
    for (std::size_t r = 0; r < layout.rows; ++r)
      for (std::size_t h = first; h < last && cells[r] == cell && places.size() < most; ++h)
        places.push_back({r, h});
  };
  if (region == Region::slowest_decay_of_head || region == Region::decays_of_head) region = Region::head;
  if (region == Region::slowest_decays || region == Region::decays) region = Region::whole;
  if (region == Region::whole) take(std::vector<std::uint32_t>(layout.rows, 0), 0, layout.heads);
  for (const RowCells& rows : row_cells(layout)) {
    if (rows.of_head == region) take(rows.cell, head, head + 1);
    if (rows.of_all == region) take(rows.cell, 0, layout.heads);
  }
  return places;
}

std::string place_of(Region region, std::size_t in_head, std::size_t c, const RowLayout& l) {
  const std::string head = fmt::format(" of head {}", in_head);
  const std::string_view one = l.of_tokens ? "token" : "channel";
  const auto number = [&](std::size_t n) { return n < l.numbers.size() ? l.numbers[n] : n; };
  // Rows [first, last] of what starts number n.
  const auto rows_named = [&](std::size_t n, std::size_t first, std::size_t last) {
    if (const std::size_t chunk = first / l.chunk; l.of_chunks && chunk == last / l.chunk) {
      if (first != last && last - first + 1 == l.chunk) return fmt::format("chunk {}", chunk);
      if (first == last) return fmt::format("key {} of chunk {}", first % l.chunk, chunk);
      return fmt::format("keys {}..{} of chunk {}", first % l.chunk, last % l.chunk, chunk);
    }
    const std::size_t start = l.starts[n];
    std::string text = first == last ? fmt::format("{} {}", one, first - start)
                                     : fmt::format("{}s {}..{}", one, first - start, last - start);
    return l.starts.size() > 2 ? fmt::format("{} of {} {}", text, l.what_starts(), number(n)) : text;
  };
  const auto row_named = [&](std::size_t row) {
    const auto behind = std::ranges::upper_bound(l.starts, row);
    return rows_named(static_cast<std::size_t>(behind - l.starts.begin()) - 1, row, row);
  };
  const auto position_named = [&](std::size_t position) {
    return l.of_chunks ? fmt::format("key {} of every chunk", position)
                       : fmt::format("{} {} mod {}", l.of_tokens ? "rows" : "channels", position, l.chunk);
  };
  // Those of a size, of a batch row or a sequence, are numbered through the whole tensor.
  const auto rows_of = [&](std::size_t size, std::size_t index) {
    std::size_t before = 0;
    for (std::size_t n = 0; n + 1 < l.starts.size(); ++n) {
      const std::size_t length = l.starts[n + 1] - l.starts[n], cells = cells_of(length, size);
      if (index < before + cells) {
        const std::size_t first = l.starts[n] + (index - before) * size;
        return rows_named(n, first, std::min(first + size, l.starts[n + 1]) - 1);
      }
      before += cells;
    }
    return std::string();
  };
  switch (region) {
    case Region::element:
      return fmt::format("{}, column {}{}", row_named(c / l.width), c % l.width, head);
    case Region::tile: {
      const std::size_t across = (l.width + tile_side - 1) / tile_side, column = c % across * tile_side;
      return fmt::format("{}, columns {}..{}{}", rows_of(tile_side, c / across), column,
                         std::min(column + tile_side, l.width) - 1, head);
    }
    case Region::row:
      return row_named(c) + head;
    case Region::column_of_head:
      if (l.width == 1) return fmt::format("head {}", in_head);
      return fmt::format("column {}{}", c, head);
    case Region::position_of_head:
      return position_named(c) + head;
    case Region::window_of_head:
      return rows_of(window_rows, c) + head;
    case Region::chunk_of_head:
      return rows_of(l.chunk, c) + head;
    case Region::sequence_of_head:
      return fmt::format("{} {}{}", l.what_starts(), number(c), head);
    case Region::head:
      return fmt::format("head {}", in_head);
    case Region::slowest_decay_of_head:
      return "the log decay of the slowest channel" + head;
    case Region::decays_of_head:
      return "the log decays" + head;
    case Region::token:
      return row_named(c) + ", all heads";
    case Region::column:
      if (l.width == 1) break;
      return fmt::format("column {}, all heads", c);
    case Region::position:
      return position_named(c) + ", all heads";
    case Region::position_in_16:
      return fmt::format("rows {} mod 16, all heads", c);
    case Region::chunk:
      return rows_of(l.chunk, c) + ", all heads";
    case Region::sequence:
      return fmt::format("{} {}, all heads", l.what_starts(), number(c));
    case Region::edge:
      return c == 0 ? "first rows of sequences" : "last rows of sequences";
    case Region::slowest_decays:
      return "the log decays of the slowest channels, all heads";
    case Region::decays:
      return "the log decays, all heads";
    case Region::whole:
      break;
  }
  return "the whole tensor";
}

}  // namespace kda_check::judge
