// One value head of a sequence, forwards and backwards in chunks, as the recurrence sees it: fp64, in loops
// (docs/kda.md, "Chunk backward").
#pragma once

#include <cstddef>
#include <vector>

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
};

/// The gradients of the same.
struct HeadGradient {
  Matrix q, k, v, g, state;
  std::vector<double> beta;
};

HeadGradient chunk_gradient(const Head& head, std::size_t chunk_size, BackwardFault fault);

}  // namespace kda_check::hypotheses::plain
