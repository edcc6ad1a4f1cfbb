// Sums of squares per window of 8 tokens and head, and what follows from them for the whole tensor.
//
// Additions of floating-point numbers have an order here: within a cell that of its elements, then cells head
// by head and window by window. Whoever fills the cells may therefore do so in parallel and in any cut.
#pragma once

#include <cstddef>
#include <vector>

#include "compare/measures.hpp"

namespace kda_check::compare {

struct Cell {
  double difference2 = 0, expected2 = 0, product = 0;  ///< sums of d^2, e^2, d e
};

/// A table of rows (windows of all batch rows, one after the other) times heads, of which only the rows
/// between the last fold and the last reach are held.
class CellTable {
 public:
  CellTable() = default;
  /// `windows`: those of a batch row, 0 when the tensor has no tokens; `heads`: 0 when it has none.
  CellTable(std::size_t windows, std::size_t heads);

  std::size_t heads() const { return heads_.size(); }  ///< at least 1
  /// Makes room for all rows before `end`.
  void reach(std::size_t end);
  /// Every row before `end` is complete: adds them up, in their order, and drops them.
  void fold(std::size_t end);
  void fold_all() { fold(first_ + cells_.size() / heads_.size()); }
  Cell* row(std::size_t row) { return &cells_[(row - first_) * heads_.size()]; }

  /// What follows from all rows folded.
  void conclude(Measures& measures) const;

 private:
  std::size_t windows_ = 0;
  bool has_heads_ = false;
  std::size_t first_ = 0;    ///< row of the first cell held
  std::vector<Cell> cells_;  ///< [row - first_][head]
  Cell whole_;
  std::vector<Cell> heads_{1};
  double worst_window_ = 0;
  std::size_t worst_row_ = no_element;
};

}  // namespace kda_check::compare
