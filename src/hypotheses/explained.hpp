// How much of an output's error a computation predicts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hypotheses/errors.hpp"
#include "kda/problem/passes.hpp"

namespace kda_check::hypotheses {

double mean_of(const std::vector<double>& list);
double least_of(const std::vector<double>& list, double of_none);

/// An output y whose truth is x, y - x being its error, held to compare predictions y_h with.
///
/// A row is the last axis of a tensor. What a prediction explains of a row is 1 - |y - y_h|^2 / |y - x|^2, no
/// less than -1. Rows without an error count -1 where the prediction has one, and else not at all.
class Explained {
 public:
  /// Of each tensor in `output` the oracle's must be in `truth`; both must stay. `from_token`: of tensors
  /// [1,T,..] the rows of earlier tokens are left out.
  Explained(const kda::Problem& problem, const kda::Tensors& output, const HeldOracle& truth,
            std::size_t from_token);

  /// Of each tensor the mean over rows: 1 where every bit is predicted, 0 by the truth.
  std::vector<double> by(const kda::Tensors& prediction) const;
  /// What a search climbs: the same over blocks of 16 elements, each without its part along the truth. A
  /// fault in some columns or rows spoils those blocks alone, and a wrong factor none.
  std::vector<double> robustly_by(const kda::Tensors& prediction) const;
  /// The share of those blocks of which `least` or more is explained: what a fault elsewhere does not change.
  std::vector<double> blocks_explained_by(const kda::Tensors& prediction, double least) const;
  /// Tiles, of 16 rows of a head, that have an error.
  struct Given {
    std::size_t tiles = 0;  ///< to the bit
    bool is_most = false;   ///< half of every tensor's, of each reach, and some at least
  };
  /// Of most, with enough errors that are not alike, what is left is a fault: a computation that differs has
  /// some in nearly every tile, or in every one that reaches back behind a row, a block or a chunk; in one of
  /// few rows it may have none.
  Given given_by(const kda::Tensors& prediction) const;
  /// Elements that have an error, and those that are NaN or infinite where the truth is not: they explain
  /// nothing.
  std::size_t errors() const { return errors_; }
  std::size_t not_finite() const { return not_finite_; }
  /// Root of the mean square error over that of the truth, of the tensor where it is largest.
  double relative_error() const { return relative_error_; }

 private:
  /// Elements that are measured together: `count` of them, `stride` apart.
  struct Block {
    std::size_t first, stride, count;
    double error, error_beside;  ///< sums of squares: all; without its part along the truth
  };
  struct OfTensor {
    std::string name;
    std::size_t width, heads,
        first_row;  ///< of rows: elements, those that share a token, the first that counts
    Differences output;
    const double* truth;
    std::vector<Block> rows, blocks;
  };
  /// Of each tensor that has errors the mean over its blocks, or rows, of what `value` makes of what is
  /// explained.
  template <class Value>
  std::vector<double> means(const kda::Tensors& prediction, bool robust, Value value) const;

  std::vector<std::uint8_t> reaches_;  ///< of tokens: how many of row, block and chunks began before them
  std::vector<OfTensor> tensors_;
  std::size_t errors_ = 0, not_finite_ = 0;
  double relative_error_ = 0;
};

}  // namespace kda_check::hypotheses
