// What each setting of a computation costs, and which to make finer first.
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

/// One setting made ideal behind those before it.
struct Advice {
  std::string setting;  ///< as of a share
  double better = 1;    ///< error before / error behind it
  double together = 1;  ///< error with none of them / error behind it
};

/// The same settings in greedy order: each the one that leaves the smallest error, those before it being
/// ideal already. What the computation does not give of the output stays, unless that is so much that it is a
/// fault's. Ends where the next is less than 1.05 times better, and behind the one that leaves less than a
/// tenth of the error: what a search need not find makes as much.
std::vector<Advice> advice_of(const Hypothesis& hypothesis, const Cut& cut, int threads);

}  // namespace kda_check::hypotheses
