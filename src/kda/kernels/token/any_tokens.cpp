// The recurrence in any arithmetic.
#include "kda/kernels/entries.hpp"
#include "kda/kernels/token/token.hpp"
#include "kda/kernels/token/token_backward.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template void token_block(const TokenBlock<float>&);
template void token_block(const TokenBlock<double>&);
template void replay_block<float, tile_lanes<float>>(const ColumnsBlock<float>&);
template void replay_block<double, tile_lanes<double>>(const ColumnsBlock<double>&);
template void column_gradients_block<float, tile_lanes<float>>(const ColumnsBlock<float>&);
template void column_gradients_block<double, tile_lanes<double>>(const ColumnsBlock<double>&);
template void row_gradients_block<float, tile_lanes<float>>(const RowsBlock<float>&);
template void row_gradients_block<double, tile_lanes<double>>(const RowsBlock<double>&);

}  // namespace kda_check::kda::KDA_CHECK_ISA
