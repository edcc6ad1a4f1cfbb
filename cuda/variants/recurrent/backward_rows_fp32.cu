#include "cuda/variants/recurrent/backward_rows.cuh"

namespace kda_check::cuda {

template void launch_backward_rows<float>(bool, const DeviceProblem&, const BackwardWork<float>&);

}  // namespace kda_check::cuda
