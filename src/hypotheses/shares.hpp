// What each setting of a computation costs.
#pragma once

#include <string>
#include <vector>

#include "hypotheses/cuts.hpp"

namespace kda_check::hypotheses {

/// Errors are root mean squares over that of the truth, of the tensor where the whole is largest.
struct Share {
  std::string setting;  ///< "bf16@v_new", "exponential=cuda-fast", "o in bf16"
  double share =
      0;  ///< of the mean square error, that goes away without it: 1 - (error without it / error)^2
  double better = 1;  ///< error / error without it
};

/// Of every rounding, and of sums, exponentials and special functions that are not the ideal ones; the
/// largest first. Those below a thousandth are left out.
std::vector<Share> shares_of(const Hypothesis& hypothesis, const Cut& cut, int threads);

}  // namespace kda_check::hypotheses
