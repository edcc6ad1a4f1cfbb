// Whole tensors measured against one another.
#pragma once

#include "judge/measures/comparison.hpp"

namespace kda_check::test {

inline judge::Measures compared(const tensor::Tensor& got, const tensor::Tensor& expected,
                                const judge::ComparisonOptions& options = {}) {
  judge::Comparison comparison(got.name(), got, false, false, options);
  comparison.add_all(expected);
  return comparison.finish();
}

}  // namespace kda_check::test
