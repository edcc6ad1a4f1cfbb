// A problem as the code under cuda/ takes it.
#pragma once

#include "cuda/problem/request.hpp"
#include "kda/problem/problem.hpp"

namespace kda_check::kda {

/// Why a GPU has no oracle and no twins of such a problem, forwards or (those too) backwards; empty when it
/// has.
std::string without_truth_on_gpu(const Dimensions& dimensions, bool backward);

/// One log decay for all K of a head as kernels take it, one for each channel: its gate and bias, too.
struct WidenedDecays {
  std::optional<tensor::Tensor> g, dt_bias;
};

/// Points into `problem` and into what it returns, which must stay both.
[[nodiscard]] WidenedDecays set_inputs(cuda::ProblemInputs& inputs, const Problem& problem);
/// Points into `problem`, which must stay.
void set_output_gradients(cuda::ProblemInputs& inputs, const Problem& problem);

}  // namespace kda_check::kda
