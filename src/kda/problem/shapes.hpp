// Shapes of the tensors of a problem and of what a pass yields on it.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "kda/problem/problem.hpp"

namespace kda_check::kda {

inline tensor::Shape shape_of(std::string_view tensor, const Problem& problem) {
  return expected_shape(*find_spec(tensor), problem.dimensions(), problem.options.state_v_first);
}

inline tensor::Tensor zeros_of(std::string_view tensor, const Problem& problem, numeric::DType dtype) {
  tensor::Tensor zeros(std::string(tensor), dtype, shape_of(tensor, problem));
  std::memset(zeros.data(), 0, zeros.bytes());
  return zeros;
}

}  // namespace kda_check::kda
