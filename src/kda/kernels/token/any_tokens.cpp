// The token forms in any arithmetic.
#include "kda/kernels/entries.hpp"
#include "kda/kernels/token/naive_backward.hpp"
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
template void naive_replay(const NaiveBackwardBlock<float>&);
template void naive_replay(const NaiveBackwardBlock<double>&);
template void naive_gradients(const NaiveBackwardBlock<float>&);
template void naive_gradients(const NaiveBackwardBlock<double>&);

}  // namespace kda_check::kda::KDA_CHECK_ISA
