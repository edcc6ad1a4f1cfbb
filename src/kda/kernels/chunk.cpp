// The chunk form.
#include "kda/kernels/chunk.hpp"
#include "kda/kernels/entries.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template void decay_between(const ChunkBlock<float>&, const float*, const float*, float*);
template void decay_between(const ChunkBlock<double>&, const double*, const double*, double*);
template void chunk_forward<float, false>(const ChunkBlock<float>&);
template void chunk_forward<float, true>(const ChunkBlock<float>&);
template void chunk_forward<double, false>(const ChunkBlock<double>&);
template void chunk_forward<double, true>(const ChunkBlock<double>&);

}  // namespace kda_check::kda::KDA_CHECK_ISA
