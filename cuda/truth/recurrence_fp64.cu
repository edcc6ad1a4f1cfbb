#include "cuda/truth/recurrence.cuh"

namespace kda_check::cuda {

void launch_oracle_recurrence_in_fp64(const OraclePortion& p, int sequences, cudaStream_t stream) {
  launch_oracle<kda::DoubleStep<double>>(p, sequences, stream);
}

}  // namespace kda_check::cuda
