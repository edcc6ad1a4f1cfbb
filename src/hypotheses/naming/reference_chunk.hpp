// One value head of a sequence, forwards and backwards in chunks, as the recurrence sees it: fp64, in loops,
// with bugs to switch on (docs/kda.md, "Chunk forward" and "Chunk backward").
#pragma once

#include <cstddef>
#include <vector>

#include "hypotheses/naming/interpretation.hpp"
#include "hypotheses/naming/reference_backward.hpp"

namespace kda_check::hypotheses::plain {

class Matrix {
 public:
  Matrix() = default;
  Matrix(std::size_t rows, std::size_t columns)
      : rows_(rows), columns_(columns), values_(rows * columns, 0.0) {}
  std::size_t rows() const { return rows_; }
  std::size_t columns() const { return columns_; }
  double& operator()(std::size_t row, std::size_t column) { return values_[row * columns_ + column]; }
  double operator()(std::size_t row, std::size_t column) const { return values_[row * columns_ + column]; }
  const std::vector<double>& values() const { return values_; }

 private:
  std::size_t rows_ = 0, columns_ = 0;
  std::vector<double> values_;
};

/// What the recurrence reads: q, k, g [tokens][K] (k and q after the norm, q without scale, g the natural log
/// of the decay), v and d_o [tokens][V], beta [tokens], states [K][V].
struct Head {
  Matrix q, k, v, g, d_o, state, d_state;
  std::vector<double> beta;
  double scale;
  Matrix carried_by = {};  ///< what the gradient of the state decays by from chunk to chunk; empty: g
};

/// The gradients of the same.
struct HeadGradient {
  Matrix q, k, v, g, state;
  std::vector<double> beta;
};

/// [tokens][V], and the state behind them. `first_row`: of the first token in its chunk. `at`: which of
/// inverse_products.
struct HeadAnswer {
  Matrix o, state;
};
HeadAnswer chunk_answer(const Head& head, std::size_t chunk_size, std::size_t first_row, ChunkFault fault,
                        std::size_t at);

HeadGradient chunk_gradient(const Head& head, std::size_t chunk_size, BackwardFault fault);

}  // namespace kda_check::hypotheses::plain
