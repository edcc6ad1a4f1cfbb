#include "cuda/variants/recurrent/backward_columns.cuh"

namespace kda_check::cuda {

template void launch_backward_columns<float>(bool, const DeviceProblem&, const BackwardWork<float>&);

}  // namespace kda_check::cuda
