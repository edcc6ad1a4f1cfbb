// The recurrence: sums in order, nothing rounded on the way.
#include "kda/kernels/entries.hpp"
#include "kda/kernels/token/recurrent.hpp"
#include "kda/kernels/token/recurrent_backward.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template void recurrent_tile<float, tile_width<float>, false>(const RecurrentBlock<float>&);
template void recurrent_tile<float, tile_width<float>, true>(const RecurrentBlock<float>&);
template void recurrent_tile<double, tile_width<double>, false>(const RecurrentBlock<double>&);
template void recurrent_tile<double, tile_width<double>, true>(const RecurrentBlock<double>&);
template void replay_tile<float, tile_width<float>, false>(const ColumnsBlock<float>&);
template void replay_tile<float, tile_width<float>, true>(const ColumnsBlock<float>&);
template void replay_tile<double, tile_width<double>, false>(const ColumnsBlock<double>&);
template void replay_tile<double, tile_width<double>, true>(const ColumnsBlock<double>&);
template void column_gradients_tile<float, tile_width<float>, false>(const ColumnsBlock<float>&);
template void column_gradients_tile<float, tile_width<float>, true>(const ColumnsBlock<float>&);
template void column_gradients_tile<double, tile_width<double>, false>(const ColumnsBlock<double>&);
template void column_gradients_tile<double, tile_width<double>, true>(const ColumnsBlock<double>&);
template void row_gradients_tile<float, tile_width<float>, false>(const RowsBlock<float>&);
template void row_gradients_tile<float, tile_width<float>, true>(const RowsBlock<float>&);
template void row_gradients_tile<double, tile_width<double>, false>(const RowsBlock<double>&);
template void row_gradients_tile<double, tile_width<double>, true>(const RowsBlock<double>&);

}  // namespace kda_check::kda::KDA_CHECK_ISA
