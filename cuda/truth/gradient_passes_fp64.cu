#include "cuda/truth/gradient_passes.cuh"

namespace kda_check::cuda {

template void launch_gradient_pass<kda::DoubleStep<double>>(GradientPass, const GradientPortion&,
                                                            cudaStream_t);

}  // namespace kda_check::cuda
