// One head of tensors in the shape that errors are added up in.
#pragma once

#include <cstddef>
#include <vector>

#include "judge/regions.hpp"
#include "judge/truth_values.hpp"

namespace kda_check::judge {

/// The truth and every field - the twins, then the answers: [rows][padded_width(width)], zeros behind the
/// columns.
struct HeadValues {
  std::vector<double> truth;
  std::vector<std::vector<float>> fields;
};

/// `head` counts in `layout`, which is that of the tensor.
std::vector<double> head_of(const TruthValues& truth, const RowLayout& layout, std::size_t head);
/// Of a tensor of fp32 or fewer bits.
std::vector<float> head_of(const tensor::Tensor& tensor, const RowLayout& layout, std::size_t head);

}  // namespace kda_check::judge
