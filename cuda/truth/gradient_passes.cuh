// The passes of the gradient oracle over the state.
#pragma once

#include "cuda/truth/gradient_columns.cuh"
#include "cuda/truth/gradient_rows.cuh"
#include "cuda/truth/gradient_states.cuh"

namespace kda_check::cuda {

template <class Step>
void launch_gradient_pass(GradientPass pass, const GradientPortion& p, cudaStream_t stream) {
  switch (pass) {
    case GradientPass::errors:
      return launch_gradient_columns<Step, false>(p, stream);
    case GradientPass::residuals:
      return launch_gradient_columns<Step, true>(p, stream);
    case GradientPass::states:
      return launch_gradient_states_in<Step>(p, stream);
    case GradientPass::rows:
      break;
  }
  if (p.value_stride % warp_lanes == 0) return launch_gradient_rows_in<Step, true>(p, stream);
  launch_gradient_rows_in<Step, false>(p, stream);
}

}  // namespace kda_check::cuda
