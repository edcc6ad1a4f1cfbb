// Copies of tensors whose elements are elsewhere: some of an axis, or another order of axes. Elements are
// moved as bits. By xtensor, but for whole runs; kernels do not come here: there the order of every addition
// is written out.
#pragma once

#include <span>

#include "tensor/tensor.hpp"

namespace kda_check::tensor {

/// These indices of an axis, in this order; any of them may come again.
Tensor picked(const Tensor& tensor, std::size_t axis, std::span<const std::size_t> indices);
/// The last two axes in the other order: a state as [.., V, K] for one as [.., K, V].
Tensor transposed(const Tensor& tensor);

}  // namespace kda_check::tensor
