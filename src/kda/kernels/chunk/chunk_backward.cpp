// The chunk form backwards.
#include "kda/kernels/chunk/chunk_backward.hpp"
#include "kda/kernels/entries.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template void chunk_backward<float, false>(const ChunkBlock<float>&, const ChunkBackwardBlock<float>&);
template void chunk_backward<float, true>(const ChunkBlock<float>&, const ChunkBackwardBlock<float>&);
template void chunk_backward<double, false>(const ChunkBlock<double>&, const ChunkBackwardBlock<double>&);
template void chunk_backward<double, true>(const ChunkBlock<double>&, const ChunkBackwardBlock<double>&);

}  // namespace kda_check::kda::KDA_CHECK_ISA
