#include "cuda/variants/recurrent/backward_columns.cuh"

namespace kda_check::cuda {

template void launch_backward_columns<double>(bool, const DeviceProblem&, const BackwardWork<double>&);

}  // namespace kda_check::cuda
