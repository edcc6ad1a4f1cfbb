// A problem as the code under cuda/ takes it.
#pragma once

#include "cuda/gpu.hpp"
#include "kda/problem.hpp"

namespace kda_check::kda {

/// Both point into `problem`, which must stay.
void set_inputs(cuda::ProblemInputs& inputs, const Problem& problem);
void set_output_gradients(cuda::ProblemInputs& inputs, const Problem& problem);

}  // namespace kda_check::kda
