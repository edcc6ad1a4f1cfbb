// What the errors of a head are measured in: units of rows, and what twins err by in them. From a first look
// at every row, wherever that is taken.
#pragma once

#include <cstddef>
#include <vector>

#include "judge/spread/envelope.hpp"
#include "judge/spread/head_errors.hpp"

namespace kda_check::judge {

/// Beyond these an error is as large as any: squares and their sums stay numbers in fp32. The first is in
/// units of the largest value of a row, the second in those of the envelope.
inline constexpr float largest_error = 1e12F, largest_excess = 1e15F;
/// Below everything that is not zero; twins that are exact ask for exactness.
inline constexpr double nothing = 1e-30;

/// Rows are kept in units of a power of two near their largest value, as the values of a head may be
/// hundreds of binary orders apart and squares of fp32 may not; where the truth is zero in those of the head.
class Units {
  static constexpr int farthest = 500;  ///< below the head, so that squares are numbers of fp64

 public:
  /// By row: the largest value of the truth that is a number.
  explicit Units(std::span<const double> largest);
  int of_head() const { return of_head_; }
  /// From values to the unit of a row.
  double to_row(std::size_t row) const;
  /// From squares in the unit of a row to squares in that of the head.
  double squares_to_head(std::size_t row) const;

 private:
  std::vector<int> exponents_;
  int of_head_ = 0;
};

/// Sums over the columns of every row, in the units of the head.
struct FirstLook {
  std::vector<double> truth_squares;
  double truth_total = 0;
  std::vector<RowSums> rows;            ///< by field
  std::vector<RowSums> twins_to_truth;  ///< by twin, where errors are differences from the first of them

  FirstLook(std::size_t rows_of_head, std::size_t fields)
      : truth_squares(rows_of_head), rows(fields, RowSums(rows_of_head)) {}
  /// Rows in their order; sums are in the unit of the row.
  void add_truth(std::size_t row, double squares, const Units& units);
  static void add(RowSums& to, std::size_t row, float squares, float along, const Units& units);
  /// Whether all fields behind the twins err as the first of them does, row by row.
  bool are_first_twin(std::size_t twins) const;
};

/// What errors are multiplied by, in units of rows and of their envelopes.
struct HeadWeights {
  std::vector<float> of_all;                 ///< empty: there is nothing to measure
  std::vector<std::vector<float>> of_field;  ///< a twin's without itself; of unfit twins none

  bool empty() const { return of_all.empty(); }
  /// Of squares of the truth, and of what lies along it.
  double of_squares(std::size_t row) const {
    return static_cast<double>(of_all[row]) * static_cast<double>(of_all[row]);
  }
};

/// Tells `errors` what a first look says.
HeadWeights weights_for(const TwinSetting& setting, const RowCells& chunk_of, const Units& units,
                        const FirstLook& look, HeadErrors& errors);

/// Puts the sums of columns that are small, of which rows say nothing, into units of what twins err by in
/// them: no column of v, nor its errors, is larger for another. `elements`: of each column.
void scale_columns(const TwinSetting& setting, const std::vector<double>& elements, HeadErrors& errors);

/// The errors of all fields along directions, row by row.
class AlongDirections {
 public:
  AlongDirections(const std::vector<Region>& regions, std::size_t fields);

  /// Of a row, in its unit: d^2 and d x.
  void add(std::size_t direction, float squares, float truth, double weight);
  /// ... and e d.
  void add(std::size_t field, std::size_t direction, float along, double weight);
  void is_none(std::size_t direction) { is_finite_[direction] = false; }
  void take(HeadErrors& errors);

 private:
  template <class Sums>
  std::vector<Sums> finite(const std::vector<Sums>& of_directions) const;

  std::vector<bool> is_finite_;
  std::vector<std::vector<AlongDirection>> fields_;
  std::vector<DirectionSums> sums_;
};

}  // namespace kda_check::judge
