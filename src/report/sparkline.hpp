// A row of numbers as a row of bars.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kda_check::report {

/// One character for each value, or for each of `most` buckets (their largest value). Bars are logarithmic,
/// from the smallest positive value to the largest and over one decade at least, so that noise stays flat.
/// Block characters, or the digits 1 to 8 without `unicode`; '.' is zero, '!' is not finite.
std::string sparkline(std::span<const double> values, bool unicode, std::size_t most = 60);

}  // namespace kda_check::report
