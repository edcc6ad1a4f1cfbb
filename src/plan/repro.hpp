// The command line that does one case alone.
#pragma once

#include <string>

#include "plan/plan.hpp"

namespace kda_check::plan {

/// For a shell, from the folder the program runs in: the same answer, reference, tensors and limits, hence
/// the same bits.
std::string repro_line(const Case& item, const Problem& problem);

}  // namespace kda_check::plan
