// The errors of many heads at once, added up on a GPU where the answers of twins are
// (judge/spread/head_errors.hpp).
#pragma once

#include <cstddef>
#include <vector>

#include "judge/spread/head_errors.hpp"
#include "kda/terms/row_error_sums.hpp"

namespace kda_check::judge {

/// Heads of one tensor, all of them on the GPU.
struct HeadsOnGpu {
  std::size_t heads = 0;
  kda::RowTensor truth;
  std::vector<kda::RowTensor> fields = {};      ///< the twins, then the answers
  std::vector<kda::RowTensor> directions = {};  ///< answers, as those of judge::Direction
  std::vector<Region> regions = {};             ///< of the directions
  double step = 1;
  std::vector<bool> have_directions = {};  ///< by head
};

/// A tensor with that layout, read from head `head` on.
kda::RowTensor rows_on_gpu(kda::TensorOnGpu tensor, numeric::DType stored_as, const RowLayout& layout,
                           std::size_t head);

/// By head: the same bits as head_errors().
std::vector<HeadErrors> head_errors_on_gpu(const TwinSetting& setting, const Tiles& tiles,
                                           const RowCells& chunk_of, const HeadsOnGpu& values, int threads);

}  // namespace kda_check::judge
