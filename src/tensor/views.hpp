// xtensor views of tensors: shapes, slices and index arithmetic without copies, for tests and whoever looks
// at tensors. Kernels do not use them: there the order of every addition is written out.
#pragma once

#include <xtensor/xadapt.hpp>
#include <xtensor/xmanipulation.hpp>
#include <xtensor/xview.hpp>

#include "tensor/tensor.hpp"

namespace kda_check::tensor {

/// A view of the elements as their storage type; valid as long as the tensor.
template <class Storage>
auto view(const Tensor& tensor) {
  return xt::adapt(reinterpret_cast<const Storage*>(tensor.data()), tensor.size(), xt::no_ownership(),
                   tensor.shape());
}
template <class Storage>
auto view(Tensor& tensor) {
  return xt::adapt(reinterpret_cast<Storage*>(tensor.data()), tensor.size(), xt::no_ownership(),
                   tensor.shape());
}

/// A view of scratch memory with a shape.
template <class T>
auto view(T* data, const Shape& shape) {
  return xt::adapt(data, element_count(shape), xt::no_ownership(), shape);
}

}  // namespace kda_check::tensor
