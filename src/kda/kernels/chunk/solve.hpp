// (I + L) X = B for a strictly lower L, B's columns side by side: no inverse is multiplied by anything.
// Blocks of rows, the first one first: substitution inside a block, then what its rows are worth to those
// below.
#pragma once

#include "kda/kernels/elements/decays.hpp"
#include "kda/kernels/sums/product.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

#ifndef __CUDACC__

struct SolutionWay {
  SumOrder order;
  std::size_t n, side;  ///< rows, and of a block: at most 16
  Rounding rounding;    ///< of the factors of products
};

/// One block of at most 16 rows and a tile of columns.
template <class T, bool is_fused>
struct SolvedBlock {
  static constexpr std::size_t side = 16, widest = 256;

  const SolutionWay& way;
  std::size_t first, rows, columns;
  const T* l;  ///< L, from the block's first column on
  std::size_t l_stride;
  T* x;  ///< the tile, from the first row of all on
  std::size_t stride;
  T *left, *solved, *sum;  ///< [side][side], [side][widest], [side][widest]

  /// Rows [from, from + count) of x less the product of as many rows of L and what is solved of the block.
  void subtract(std::size_t from, std::size_t count, std::size_t depth) const {
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t m = 0; m < depth; ++m)
        left[i * side + m] = rounded(way.rounding, l[(from + i) * l_stride + m]);
    if (count == 1 && depth == 1) {
      for (std::size_t c = 0; c < columns; ++c)
        x[from * stride + c] = scalar_multiply_add<is_fused>(-left[0], solved[c], x[from * stride + c]);
      return;
    }
    product<T, is_fused>(way.order, count, columns, depth, Factor<T>{left, side, 1}, solved, widest, sum,
                         widest, Start::zero);
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t c = 0; c < columns; ++c)
        x[(from + i) * stride + c] = x[(from + i) * stride + c] - sum[i * widest + c];
  }

  void run() const {
    for (std::size_t row = 0; row < rows; ++row) {
      if (row > 0) subtract(first + row, 1, row);
      for (std::size_t c = 0; c < columns; ++c)
        solved[row * widest + c] = rounded(way.rounding, x[(first + row) * stride + c]);
    }
    for (std::size_t from = first + rows; from < way.n; from += side)
      subtract(from, way.n - from < side ? way.n - from : side, rows);
  }
};

/// B, in x, to X. `columns` is a multiple of 16; `scratch`: 16 (16 + 2 x 256) elements.
template <class T, bool is_fused>
void solve(const SolutionWay& way, const T* l, std::size_t l_stride, std::size_t columns, T* x,
           std::size_t stride, T* scratch) {
  using Block = SolvedBlock<T, is_fused>;
  T* const solved = scratch + Block::side * Block::side;
  T* const sum = solved + Block::side * Block::widest;
  for (std::size_t column = 0; column < columns; column += Block::widest) {
    const std::size_t width = columns - column < Block::widest ? columns - column : Block::widest;
    for (std::size_t first = 0; first < way.n; first += way.side) {
      const std::size_t rows = way.n - first < way.side ? way.n - first : way.side;
      Block{way, first, rows, width, l + first, l_stride, x + column, stride, scratch, solved, sum}.run();
    }
  }
}

#endif

}  // namespace kda_check::kda::KDA_CHECK_ISA
