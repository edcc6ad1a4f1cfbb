// What storing the state between tokens will cost, from the inputs alone: no state is computed. Two numbers
// are followed for each channel k, the mean square of its row of the state and that of the error in it: both
// decay with the gates and are erased by what is written, and every storing adds its roundings
// (docs/serving.md).
//
// What is assumed: rows that know nothing of each other, values of no fixed sign, and roundings that are
// random. Nearest rounding is not where a token changes an element by less than a step: that is told, not
// forecast.
#pragma once

#include <vector>

#include "kda/arithmetic/stored_state.hpp"
#include "kda/problem/problem.hpp"

namespace kda_check::explain {

struct StateForecast {
  kda::StoredState stored;
  double o = 0, final_state = 0;  ///< rms_ratio of the error
  double largest = 0;             ///< share of the format's largest number that an unscaled state reaches
  double change = 0;  ///< what a token changes an element by, in steps between its neighbours, rms

  /// Below so many steps changes are not random enough for nearest rounding to be right in the mean.
  static constexpr double least_change = 1;
  /// Nearest rounding swallows what tokens change: the error is no random one, and larger.
  bool stagnates() const;
  bool overflows() const { return largest > 1; }
};

/// One row for each of what states are stored as, of all sequences and heads of the problem. The same bits on
/// any number of threads.
std::vector<StateForecast> forecast_states(const kda::Problem& problem, int threads);

}  // namespace kda_check::explain
