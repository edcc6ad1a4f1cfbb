// Tensors in host memory, behind plain data. Included without any CUDA header.
#pragma once

#include <cstddef>

#include "numeric/formats.hpp"

namespace kda_check::cuda {

/// A dense tensor in host memory; no data: there is none.
struct Input {
  numeric::DType dtype = numeric::DType::fp32;
  const void* data = nullptr;
  std::size_t elements = 0;
};
struct Output {
  numeric::DType dtype = numeric::DType::fp32;
  void* data = nullptr;
  std::size_t elements = 0;
};

}  // namespace kda_check::cuda
