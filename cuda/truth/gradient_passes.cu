#include "cuda/truth/gradient_passes.cuh"

namespace kda_check::cuda {

template void launch_gradient_pass<kda::DoubleDoubleStep<double>>(GradientPass, const GradientPortion&,
                                                                  cudaStream_t);

std::size_t gradient_shared_bytes(int K, int V) {
  const std::size_t columns = ColumnShared<true>(K).bytes(), rows = RowShared::bytes((V + 7) / 8 * 8);
  return columns > rows ? columns : rows;
}

}  // namespace kda_check::cuda
