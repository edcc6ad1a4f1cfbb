// exp in integers, for the arguments whose rounding 66 bits do not decide.
#pragma once

#include "numeric/double_double.hpp"

namespace kda_check::numeric::exact {

/// exp(x) and 2^x rounded once, 2^-60 <= |x| <= 1100.
double exp(double x);
double exp2(double x);

/// Whether exp(x.hi + x.lo) < y.hi + y.lo, which is positive and no farther from it than a factor of e.
bool exp_is_below(DoubleDouble x, DoubleDouble y);

}  // namespace kda_check::numeric::exact
