// The floating-point environment every figure of this program relies on.
#pragma once

#include <string>

namespace kda_check::numeric {

/// Empty when this thread computes as IEEE 754 says: rounding to nearest, gradual underflow for results (no
/// FTZ) and operands (no DAZ), no excess precision, no contraction by the compiler, a correct fma. Otherwise
/// what is wrong, in words for an error message. Costs microseconds; run once at start.
std::string floating_point_defect();

}  // namespace kda_check::numeric
