#include "cuda/truth/recurrence.cuh"

namespace kda_check::cuda {

std::size_t oracle_shared_bytes(int K) { return OracleShared(K).bytes(); }

void launch_oracle_recurrence(const OraclePortion& p, int sequences, cudaStream_t stream) {
  launch_oracle<kda::DoubleDoubleStep<double>>(p, sequences, stream);
}

}  // namespace kda_check::cuda
