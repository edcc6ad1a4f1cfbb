// The chunk form.
#include "kda/kernels/chunk/chunk.hpp"
#include "kda/kernels/entries.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template void to_decays(const ChunkBlock<float>&, float*);
template void to_decays(const ChunkBlock<double>&, double*);
template void to_reciprocal_decays(const ChunkBlock<float>&, float*);
template void to_reciprocal_decays(const ChunkBlock<double>&, double*);
template void chunk_forward<float, false>(const ChunkBlock<float>&);
template void chunk_forward<float, true>(const ChunkBlock<float>&);
template void chunk_forward<double, false>(const ChunkBlock<double>&);
template void chunk_forward<double, true>(const ChunkBlock<double>&);

}  // namespace kda_check::kda::KDA_CHECK_ISA
