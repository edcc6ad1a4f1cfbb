// The recurrence: sums in order, nothing rounded on the way.
#include "kda/kernels/entries.hpp"
#include "kda/kernels/token/recurrent.hpp"
#include "kda/kernels/token/recurrent_backward.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

template void recurrent_tile<float, tile_width<float>, false, false>(const ColumnsBlock<float>&);
template void recurrent_tile<float, tile_width<float>, false, true>(const ColumnsBlock<float>&);
template void recurrent_tile<float, tile_width<float>, true, false>(const ColumnsBlock<float>&);
template void recurrent_tile<float, tile_width<float>, true, true>(const ColumnsBlock<float>&);
template void recurrent_tile<double, tile_width<double>, false, false>(const ColumnsBlock<double>&);
template void recurrent_tile<double, tile_width<double>, false, true>(const ColumnsBlock<double>&);
template void recurrent_tile<double, tile_width<double>, true, false>(const ColumnsBlock<double>&);
template void recurrent_tile<double, tile_width<double>, true, true>(const ColumnsBlock<double>&);
template void column_gradients_tile<float, tile_width<float>, false>(const ColumnsBlock<float>&);
template void column_gradients_tile<float, tile_width<float>, true>(const ColumnsBlock<float>&);
template void column_gradients_tile<double, tile_width<double>, false>(const ColumnsBlock<double>&);
template void column_gradients_tile<double, tile_width<double>, true>(const ColumnsBlock<double>&);
template void row_gradients_tile<float, tile_width<float>, false>(const RowsBlock<float>&);
template void row_gradients_tile<float, tile_width<float>, true>(const RowsBlock<float>&);
template void row_gradients_tile<double, tile_width<double>, false>(const RowsBlock<double>&);
template void row_gradients_tile<double, tile_width<double>, true>(const RowsBlock<double>&);

}  // namespace kda_check::kda::KDA_CHECK_ISA
