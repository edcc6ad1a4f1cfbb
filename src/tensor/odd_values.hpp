// Elements that a kernel need not survive, counted.
#pragma once

#include <cstddef>

#include "tensor/tensor.hpp"

namespace kda_check::tensor {

struct OddValues {
  std::size_t count = 0;
  std::size_t first = 0;  ///< of them, where there are any
};

OddValues not_finite(const Tensor& tensor, int threads);
OddValues above_zero(const Tensor& tensor, int threads);

}  // namespace kda_check::tensor
