// Errors of outputs beside the size of the truth.
#include <algorithm>
#include <cmath>

#include "kda/bounds/term_energies.hpp"

namespace kda_check::kda {

double OutputErrors::least_magnitude(std::span<const double> magnitudes) {
  double least = HUGE_VAL;
  for (const double magnitude : magnitudes)
    if (magnitude > 0) least = std::min(least, magnitude);
  return least;
}

ProbedErrors OutputErrors::over(std::span<const double> least_magnitudes) const {
  ProbedErrors largest;
  if (recurrence.empty()) return largest;
  for (std::size_t row = 0; row < least_magnitudes.size(); ++row) {
    const auto widen = [&](double& most, const std::vector<double>& rows) {
      most = std::max(most, rows[row] / least_magnitudes[row]);
    };
    widen(largest.recurrence, recurrence), widen(largest.solving, solving), widen(largest.writing, writing);
  }
  return largest;
}

}  // namespace kda_check::kda
