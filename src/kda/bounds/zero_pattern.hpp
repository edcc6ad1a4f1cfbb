// Which parts of a truth are zero whatever the sizes of the inputs: what is made of zeros only. The oracles
// cannot tell that from what is too small for fp64, e^-800 for one.
#pragma once

#include "kda/problem/problem.hpp"

namespace kda_check::kda {

/// A problem whose inputs are zero, infinite or NaN where those of the other are, and else arbitrary numbers
/// of ordinary size; whose gates hardly forget, but for those that reset, and whose keys let no state grow.
/// Nothing in its truth is too small for fp64, so that what is zero there is zero in the other's truth too.
Problem of_same_zeros(const Problem& problem);

}  // namespace kda_check::kda
