#include "cuda/variants/recurrent/recurrent.cuh"

namespace kda_check::cuda {

template void launch_recurrent<double>(bool, const DeviceProblem&, const TokenRange*, int);

}  // namespace kda_check::cuda
