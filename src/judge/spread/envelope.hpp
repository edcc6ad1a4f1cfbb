// What twins err by in each row of a head: the scale that errors are measured in (docs/verdicts.md).
#pragma once

#include <cstddef>
#include <vector>

#include "judge/measures/regions.hpp"

namespace kda_check::judge {

/// By row, over the columns, in the units of the head: of (y - x)^2 and of (y - x) x.
struct RowSums {
  std::vector<double> squares, along;
  double total = 0;  ///< of squares

  explicit RowSums(std::size_t rows) : squares(rows), along(rows) {}
};

/// What an answer may err by, however little its twins do.
struct Floors {
  double of_truth;                 ///< in units of the truth
  double least_error;              ///< in the units of the head
  const RowSums* noise = nullptr;  ///< of a computation that is known, and how much of it may be left
  double share_of_noise = 0;
  double exact_below = 0;  ///< noise that is no more than that of the truth says nothing
};

/// What twins err by in each row, squared, the mean over its columns: the most of all of them.
class Envelope {
 public:
  /// `truth_squares`: by row; `fields`: the twins come first; `fit`: by twin. `layout`, `chunk_of` and
  /// `truth_squares` must stay.
  Envelope(const RowLayout& layout, const RowCells& chunk_of, const std::vector<double>& truth_squares,
           const std::vector<RowSums>& fields, const std::vector<bool>& fit, const Floors& floors);

  std::vector<double> of_all() const { return with_floors(most_); }
  std::vector<double> without(std::size_t twin) const;

 private:
  std::vector<double> smoothed(const RowSums& sums) const;
  double coherence(const RowSums& sums) const;
  std::vector<double> with_floors(std::vector<double> envelope) const;
  double columns(std::size_t row) const { return static_cast<double>(layout_.columns(row)); }

  const RowLayout& layout_;
  const RowCells& chunk_of_;
  const std::vector<double>& truth_;
  const Floors floors_;
  std::vector<double> most_, next_;
  std::vector<std::size_t> who_;
};

}  // namespace kda_check::judge
