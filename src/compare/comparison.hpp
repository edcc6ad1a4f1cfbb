// Compares a tensor with what was expected, piece by piece, in one pass over both.
//
// Pieces may arrive in any cut; every sum is kept per window of 8 tokens and head, in the order of the
// elements, so that neither the number of threads nor the way the pieces are cut along heads changes a
// result.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "compare/measures.hpp"
#include "compare/series.hpp"
#include "kda/schema.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::compare {

inline constexpr std::size_t window_tokens = 8;

struct ComparisonOptions {
  double atol = 0, rtol = 0;  ///< for `outside`; both 0 counts every difference
  std::size_t worst = 5;      ///< points to list
  int threads = 1;
  bool against_oracle = false;  ///< a non-finite expected value then decides nothing
  bool series = false;          ///< keep the errors of every token and head
};

/// What is expected of elements [begin, begin + count): hi + lo, and the magnitude or null.
struct ExpectedValues {
  const double *hi, *lo, *magnitude;
};

class Comparison {
 public:
  /// `name` selects the axes (kda/schema); a tensor that is not in the list has no windows and no heads.
  Comparison(std::string_view name, const tensor::Tensor& got, bool state_v_first, bool has_magnitude,
             const ComparisonOptions& options);

  /// Elements [begin, begin + count) against values held in double-double.
  void add(std::size_t begin, std::size_t count, const ExpectedValues& expected);
  /// The whole tensor against another of the same shape, whatever its element type.
  void add_all(const tensor::Tensor& expected);

  Measures finish();
  /// Errors token by token, when the options ask for them and the tensor has tokens.
  TokenSeries take_series() { return std::move(series_); }

 private:
  struct Cell {
    double difference2 = 0, expected2 = 0, product = 0;  ///< sums of d^2, e^2, d e
  };
  template <class Storage>
  void add_run(std::size_t begin, std::size_t count, const ExpectedValues& expected, Measures& m, Cell& cell);
  TokenErrors* token_errors(std::size_t element) {
    return series_.cells.empty() ? nullptr : &series_.cells[element / run_];
  }
  template <class Body>
  void over_runs(std::size_t begin, std::size_t count, Body body);
  void keep_worst(std::vector<Point>& worst, const Point& point) const;

  const tensor::Tensor& got_;
  const bool has_magnitude_;
  const ComparisonOptions options_;
  // How the flat index is read: runs of `run_` elements share a batch row, a token and a head.
  std::size_t run_ = 1, tokens_ = 1, heads_ = 1, token_stride_ = 0, head_stride_ = 0, row_stride_ = 0;
  bool has_tokens_ = false, has_heads_ = false;
  std::size_t windows_per_row_ = 1;
  std::vector<Cell> cells_;      ///< [row * windows_per_row + window][head]
  TokenSeries series_;           ///< runs in order
  std::vector<Measures> parts_;  ///< one for each worker: everything that does not depend on order
};

}  // namespace kda_check::compare
