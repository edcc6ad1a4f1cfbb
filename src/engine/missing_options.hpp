// Options that a problem probably lacks: with them its recurrence would keep the state bounded, without them
// it does not.
#pragma once

#include <string>
#include <vector>

#include "kda/problem/problem.hpp"

namespace kda_check::engine {

/// A sentence for each option. Empty where the recurrence grows nowhere - no gate above 0, beta |k|^2 in [0,
/// 2] - or where it grows although the options are set.
std::vector<std::string> missing_options(const kda::Problem& problem);

}  // namespace kda_check::engine
