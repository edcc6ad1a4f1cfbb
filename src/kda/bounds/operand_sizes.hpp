// How large the operands are that gradients, outputs and states are made of: below the smallest normal number
// of a format it is their size that says what rounding loses, whatever they are multiplied with later.
#pragma once

#include "kda/problem/problem.hpp"

namespace kda_check::kda {

/// Root mean squares; 0 of zeros.
struct OperandSizes {
  double state = 0;  ///< of what a token writes, beta k v, or of the initial state, if that is larger
  double state_gradient = 0;  ///< of what a token adds, q do, or of dht, if that is larger; 0 without a loss
};

OperandSizes operand_sizes(const Problem& problem, int threads);

}  // namespace kda_check::kda
