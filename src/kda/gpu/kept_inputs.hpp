// Inputs that stay on a GPU while several run on the same problem: variants, the oracle, twins.
#pragma once

#include <memory>

#include "kda/problem/problem.hpp"

namespace kda_check::kda {

/// While what it returns lives, inputs of `problem` that went up to a GPU do not go up again. It must stay as
/// and where it is.
std::shared_ptr<const void> kept_on_gpu(const Problem& problem);

}  // namespace kda_check::kda
