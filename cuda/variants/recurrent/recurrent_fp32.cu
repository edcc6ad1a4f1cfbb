#include "cuda/variants/recurrent/recurrent.cuh"

namespace kda_check::cuda {

template void launch_recurrent<float>(bool, const DeviceProblem&, const TokenRange*, int);

}  // namespace kda_check::cuda
