// Sums of squares per window of 8 tokens and head, and what follows from them for the whole tensor.
//
// Additions of floating-point numbers have an order here: within a cell that of its elements, then cells head
// by head and window by window. Whoever fills the cells may therefore do so in parallel and in any cut.
#pragma once

#include <cstddef>
#include <vector>

#include "judge/measures/measures.hpp"
#include "numeric/product_sum.hpp"

namespace kda_check::judge {

struct Cell {
  numeric::ProductSum difference2, expected2, product;  ///< sums of d^2, e^2, d e
  std::size_t elements = 0;                             ///< that they are over

  /// One element.
  void add(double difference, double expected);
  bool is_plain() const { return difference2.is_plain() && expected2.is_plain() && product.is_plain(); }
};

/// A table of rows (windows of all batch rows, one after the other) times heads, of which only the rows
/// between the last fold and the last reach are held.
class Grid {
 public:
  Grid() = default;
  /// `windows`: those of a batch row, 0 when the tensor has no tokens; `heads`: 0 when it has none.
  /// `smallest_step`: of the element type.
  Grid(std::size_t windows, std::size_t heads, double smallest_step);

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
  /// 0 where the error is half a step or less, rms: no answer may be asked for less.
  double ratio_beyond_step(const Cell& cell) const;

  std::size_t windows_ = 0;
  bool has_heads_ = false;
  double smallest_step_ = 0;
  std::size_t first_ = 0;    ///< row of the first cell held
  std::vector<Cell> cells_;  ///< [row - first_][head]
  Cell whole_;
  std::vector<Cell> heads_{1};
  double worst_window_ = 0;
  std::size_t worst_row_ = no_element;
};

}  // namespace kda_check::judge
