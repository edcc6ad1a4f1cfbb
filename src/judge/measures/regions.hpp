// Where errors are looked for: a tensor as rows of channels, and the regions of such rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kda/problem/problem.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::judge {

/// A tensor as [rows][heads][width], whichever way it is stored. Of o and of the gradients of inputs a row is
/// a token (of all batch rows, one behind the other), of a state a channel of the key of one sequence or
/// chunk.
struct RowLayout {
  std::size_t rows = 0, heads = 0, width = 0;
  std::size_t chunk = 64;  ///< rows that a chunk form computes together; of states 16
  /// First rows of the sequences that have any, or of checkpoints, and the number of rows.
  std::vector<std::size_t> starts;
  bool of_tokens = true;

  /// Flat index of an element of the tensor.
  std::size_t element(std::size_t row, std::size_t head, std::size_t column) const {
    return row / block_rows * block_stride + row % block_rows * row_stride + head * head_stride +
           column * column_stride;
  }

  /// Of a tensor that has so many heads and is the same otherwise.
  RowLayout with_heads(std::size_t count) const;

  std::size_t block_rows = 1, block_stride = 0, row_stride = 0, head_stride = 0, column_stride = 1;
  bool of_chunks = false;  ///< states of chunks, of `chunk` rows each
  /// Of each row how many columns count, the first ones; empty: all do. What does not count is zero.
  std::vector<std::uint32_t> counted = {};
  std::vector<std::size_t> numbers = {};  ///< of the sequences at `starts`
  bool of_checkpoints = false;            ///< and not of sequences

  const char* what_starts() const { return of_checkpoints ? "checkpoint" : "sequence"; }
  std::size_t columns(std::size_t row) const { return counted.empty() ? width : counted[row]; }
};

/// Of a tensor of kda/schema with the shape that `problem` gives it; no rows for one that has none:
/// parameters and their gradients.
RowLayout row_layout(std::string_view name, const tensor::Shape& shape, const kda::Problem& problem,
                     std::size_t chunk_size);

/// What errors are added up over, finest first. Those of a head stand before those of all heads.
enum class Region : std::uint8_t {
  element,
  tile,  ///< 16 rows by 16 columns of a head
  row,   ///< one of a head
  column_of_head,
  position_of_head,  ///< rows of the same number in their chunks
  window_of_head,    ///< 8 rows
  chunk_of_head,
  sequence_of_head,
  head,
  // What a head answers, as it changes with log decays (TwinTest: directions).
  slowest_decay_of_head,
  decays_of_head,
  token,  ///< a row of all heads
  column,
  position,
  position_in_16,
  chunk,
  sequence,
  whole,
  edge,  ///< first rows of sequences, last ones
  // As those of a head.
  slowest_decays,
  decays,
};
inline constexpr std::size_t region_count = 21;

inline constexpr std::uint32_t no_cell = ~std::uint32_t{0};

/// A way to tell rows apart: the cell that each row is in.
struct RowCells {
  std::optional<Region> of_head;    ///< cells of each head for itself
  std::optional<Region> of_all;     ///< cells of all heads together
  std::vector<std::uint32_t> cell;  ///< by row; of some no_cell
  std::size_t count = 0;
};
/// All but the whole tensor and what has columns.
std::vector<RowCells> row_cells(const RowLayout& layout);

inline constexpr std::size_t tile_side = 16;
/// Columns that a row has in memory where errors are added up: whole tiles.
constexpr std::size_t padded_width(std::size_t width) {
  return (width + tile_side - 1) / tile_side * tile_side;
}
/// The tiles of a head: number row_of_tiles[row] * across + column / tile_side.
struct Tiles {
  std::vector<std::uint32_t> row_of_tiles;  ///< by row
  std::size_t across = 0;
  std::vector<double> elements;  ///< of each tile
};
Tiles tiles_of(const RowLayout& layout);

/// A row of a head.
struct RowPlace {
  std::size_t row, head;
};
/// Rows of a cell, at most so many; none of a region that is not made of whole rows.
std::vector<RowPlace> rows_in(Region region, std::size_t head, std::size_t cell, const RowLayout& layout,
                              std::size_t most);

/// "rows 63 mod 64 of head 3", "tokens 512..527, columns 32..47 of head 3", "channel 8 of sequence 2, all
/// heads": counted in their sequence where there are several. The cell of an element is row * width + column.
std::string place_of(Region region, std::size_t head, std::size_t cell, const RowLayout& layout);

}  // namespace kda_check::judge
