#include "cuda/variants/recurrent/backward_rows.cuh"

namespace kda_check::cuda {

template void launch_backward_rows<double>(bool, const DeviceProblem&, const BackwardWork<double>&);

}  // namespace kda_check::cuda
