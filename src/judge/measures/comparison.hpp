// Compares a tensor with what was expected, piece by piece, in one pass over both.
//
// Pieces may arrive in any cut; every sum is kept per window of 8 tokens and head, in the order of the
// elements, so that neither the number of threads nor the way the pieces are cut along heads changes a
// result.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "judge/measures/grid.hpp"
#include "judge/measures/measures.hpp"
#include "judge/measures/series.hpp"
#include "judge/measures/tensor_axes.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::judge {

struct ComparisonOptions {
  double atol = 0, rtol = 0;  ///< for `outside`; both 0 counts every difference
  std::size_t worst = 5;      ///< points to list
  int threads = 1;
  bool against_oracle = false;  ///< a non-finite expected value then decides nothing
  /// Of what the answer is computed in: a truth beyond it cannot be computed, nor what depends on it.
  double largest = HUGE_VAL;
  bool series = false;    ///< keep the errors of every token and head
  bool nan_bits = false;  ///< NaNs of other bits differ; both tensors have one element type
  std::vector<std::int64_t> cu_seqlens = {};  ///< of a packed batch: where its sequences begin
};

/// What is expected of elements [begin, begin + count): hi + lo, and the magnitude or null.
struct ExpectedValues {
  const double *hi, *lo, *magnitude;

  ExpectedValues from(std::size_t offset) const {
    return {hi + offset, lo + offset, magnitude == nullptr ? nullptr : magnitude + offset};
  }
};

/// Where the elements of a tensor are: returns the address of [begin, begin + count), which may be in `room`,
/// where there is space for them. Called from several threads.
using ElementSource = std::function<const std::byte*(std::size_t begin, std::size_t count, std::byte* room)>;

class Comparison {
 public:
  /// `name` selects the axes (kda/schema); a tensor that is not in the list has no windows and no heads.
  Comparison(std::string_view name, const tensor::Tensor& got, bool state_v_first, bool has_magnitude,
             const ComparisonOptions& options);
  /// Of a tensor that is never whole in memory: see add_read.
  Comparison(std::string_view name, const tensor::Shape& shape, numeric::DType dtype, bool state_v_first,
             const ComparisonOptions& options);

  /// Elements [begin, begin + count) against values held in double-double.
  void add(std::size_t begin, std::size_t count, const ExpectedValues& expected);
  /// The same for the elements of a token and a head, on this thread. Runs of several heads may be added at
  /// once, each by another `worker` below options.threads; those of a head in their order.
  void add_run(std::size_t begin, const ExpectedValues& expected, int worker);
  /// The whole tensor against another of the same shape, whatever its element type.
  void add_all(const tensor::Tensor& expected);
  /// Elements [begin, begin + count) of both sides, read in pieces; memory is bounded by `count`. Each call
  /// goes on where the last one ended, the first begins at 0. The same results as add_all.
  void add_read(std::size_t begin, std::size_t count, const ElementSource& got, numeric::DType expected_dtype,
                const ElementSource& expected);

  Measures finish();
  /// Errors token by token, when the options ask for them and the tensor has tokens.
  TokenSeries take_series() { return std::move(series_); }

 private:
  TokenErrors* token_errors(std::size_t element) {
    return series_.cells.empty() ? nullptr : &series_.cells[element / axes_.run];
  }
  template <class Body>
  void over_tasks(std::size_t begin, std::size_t count, std::size_t least, Body body);
  template <class Body>
  void over_runs(std::size_t begin, std::size_t end, Body body);
  /// Elements [begin, end), on one thread; `expected` is of the first.
  template <class Storage>
  void add_wide(std::size_t begin, std::size_t end, const ExpectedValues& expected, Measures& part);
  template <class Storage, class Element>
  void add_stored(std::size_t begin, std::size_t count, const Storage* got, const Element* expected,
                  Measures& part);
  template <class Storage>
  std::size_t add_equal_heads(std::size_t available, std::size_t head, const Storage* got,
                              const Storage* expected, bool squarable, Cell* cells, Measures& part) const;
  void add_sources(std::size_t begin, std::size_t count, const ElementSource& got,
                   numeric::DType expected_dtype, const ElementSource& expected);

  const std::byte* got_ = nullptr;  ///< none when it is read
  const numeric::DType dtype_;
  const std::size_t size_;
  bool has_magnitude_ = false;
  const ComparisonOptions options_;
  const TensorAxes axes_;
  Grid cells_;
  TokenSeries series_;           ///< runs in order
  std::vector<Measures> parts_;  ///< one for each worker: everything that does not depend on order
};

}  // namespace kda_check::judge
