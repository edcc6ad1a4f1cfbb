// The errors of answers and of twins - emulated kernels that solved the same problem - in one head, in units
// of what twins err by in the same row: what is added up over regions (docs/verdicts.md).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "judge/measures/head_values.hpp"
#include "judge/measures/regions.hpp"

namespace kda_check::judge {

/// Of one field along a direction d: the sum of e d / s^2, and of its squares row by row.
struct AlongDirection {
  double sum = 0, squares = 0;
};

/// Of one field, e its error, or how far it is from the computation that is known, x the truth, s the
/// envelope of its row: sums of e^2 / s^2 and of e x / s^2. Not a number where the field or the truth is
/// none.
struct ErrorSums {
  std::vector<float> row_energy, row_along;  ///< kept until all heads are measured
  std::vector<double> column_energy, column_along;
  std::vector<double> tile_energy;
  double element_energy = 0;  ///< the largest e^2 / (s^2 + (u x)^2), u half a step of the element type at 1
  double element_share = 0;   ///< e^2 / s^2 there
  std::size_t element = 0;    ///< row * width + column
  double squares = 0;         ///< sum of e^2, times 4^-exponent
  std::vector<AlongDirection> directions;
};

/// Of a direction d: sums of d^2 / s^2 and of x d / s^2, and how much of the energy of a row lies along it,
/// at most.
struct DirectionSums {
  Region region;
  double squares = 0, truth = 0, coherence = 1;

  bool is_none() const;  ///< nothing changes in it, or more than numbers hold
};

struct TwinSetting;

struct HeadErrors {
  std::vector<float> row_truth;  ///< sums of x^2 / s^2
  std::vector<double> column_truth;
  double column_least = 0;  ///< of what any element may err by
  double coherence = 1;     ///< how much of the energy of a row lies along x, at most
  std::vector<DirectionSums> directions;
  std::vector<ErrorSums> fields;  ///< a twin's energies without itself in the envelope; of unfit twins none
  std::vector<double> twin_squares;  ///< sum of (y - x)^2 of each twin, times 4^-exponent
  std::vector<bool> fit;             ///< by twin: finite, and not far from the truth
  bool are_first_twin = false;       ///< every answer is the first twin, to the bit
  int exponent = 0;                  ///< of the largest value of the truth
  double truth_squares = 0;          ///< sum of x^2, times 4^-exponent

  std::size_t fit_twins() const;
  /// Which twins are, in that setting.
  std::vector<bool> fit_in(const TwinSetting& setting) const;
};

/// What is known of the tensors that are judged together.
struct TwinSetting {
  RowLayout layout;
  std::size_t twins = 0, answers = 0;  ///< fields: the twins come first
  double storage_unit = 0;             ///< half a step of the element type at 1: 2^-8 of bf16
  /// That truncated operands may leave: 2^-11 of products in 16 bits or tf32. None: slopes do not judge.
  std::optional<double> slope_floor = {};
  /// Distance from the twins, in what they are apart, at which an answer is beyond them (docs/verdicts.md,
  /// "Constants").
  double factor = 3;
  /// Where a twin errs by so many times what the stable computations do in a head, it loses digits by its
  /// algorithm there and does not count; without these above this rms_ratio.
  double most_of_stable = 2.5, most_rms_ratio = 0.1;
  /// What any error may be: so much is lost where numbers end, by storing or flushing them.
  double least_error = 0;
  /// Of the twins, the last ones: the stable computations, which bounds follow from and nothing is compared
  /// with.
  std::size_t stable = 0;
  /// Errors are differences from the first twin, which computes the answers but for this share of their
  /// error.
  std::optional<double> left = {};
  /// A row may err by one rounded operand of its sums, wholly along the truth, though no twin does.
  double operand_unit = 0;
  /// Heads that are measured beside all twins; in others the first one is enough where the answers are its.
  /// Empty: all.
  std::vector<bool> in_full = {};
};

inline constexpr std::size_t fewest_twins = 3;
/// Of the squares of its noise, how much may be left of an answer whose computation is known: what a fifth of
/// the noise hides is not seen, and what tells orders of sums apart is no error.
inline constexpr double least_left = 1.0 / 25;

/// `chunk_of`: cells of Region::chunk_of_head. With fewer than fewest_twins that are fit, or a truth of
/// zeros, there is nothing but what says so.
HeadErrors head_errors(const TwinSetting& setting, const Tiles& tiles, const RowCells& chunk_of,
                       const HeadValues& values);

}  // namespace kda_check::judge
