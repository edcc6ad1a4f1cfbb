#include "cuda/variants/chunk/state.cuh"

namespace kda_check::cuda {

template std::size_t chunk_shared_bytes<double>(int);
template void launch_chunk_state(bool, const DeviceProblem&, const ChunkWork<double>&);

}  // namespace kda_check::cuda
