// A problem as the code under cuda/ takes it.
#pragma once

#include "cuda/gpu.hpp"
#include "kda/problem.hpp"

namespace kda_check::kda {

/// Points into `problem`, which must stay.
void set_inputs(cuda::ProblemInputs& inputs, const Problem& problem);

}  // namespace kda_check::kda
