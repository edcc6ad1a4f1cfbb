#include "cuda/variants/chunk/backward_state.cuh"

namespace kda_check::cuda {

template void launch_chunk_backward_states(bool, const DeviceProblem&, const ChunkBackwardWork<float>&);

}  // namespace kda_check::cuda
