// Whether an error is what gates that are all off by the same would make: the softplus of a kernel that loses
// the last places of log2(1 + 2^x), docs/findings.md.
#pragma once

#include <optional>
#include <string_view>

#include "judge/truth_values.hpp"
#include "kda/passes.hpp"

namespace kda_check::engine {

/// What a problem's answer does when every log decay grows: two runs of the recurrence in fp64.
class GateDirection {
 public:
  /// For gates that the kernel computes by softplus.
  GateDirection(const kda::Problem& problem, int threads);

  /// By how much of 2^-24 exp(A_log) at every token, where that explains most of the error; o and
  /// final_state.
  std::optional<double> offset(std::string_view tensor, const judge::TruthValues& truth,
                               const tensor::Tensor& answer) const;

 private:
  kda::Tensors base_, shifted_;
};

}  // namespace kda_check::engine
