#include "cuda/truth/recurrence_launch.cuh"

namespace kda_check::cuda {

void launch_oracle_recurrence_in_fp64(const OraclePortion& p, int sequences, int processors,
                                      cudaStream_t stream) {
  launch_oracle<kda::DoubleStep<double>>(p, sequences, processors, stream);
}

}  // namespace kda_check::cuda
