// Whether an error is what gates that are all off by the same would make: the softplus of a kernel that loses
// the last places of log2(1 + 2^x), docs/findings.md.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "judge/measures/head_values.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::engine {

/// Of errors e and of the direction d that gates move an answer in: sums of e^2, e d and d^2.
struct GateSums {
  double errors = 0, along = 0, directions = 0;

  void add(const GateSums& other);
  /// By how much of 2^-24 exp(A_log) all gates are off at every token, where that explains most of the error.
  std::optional<double> offset() const;
};

/// What the answer to a problem, some heads of a larger one, does when every log decay grows: two runs of the
/// recurrence in fp64.
class GateDirection {
 public:
  /// For gates that the kernel computes by softplus.
  explicit GateDirection(const kda::Problem& problem);

  /// Of head `head` of an answer, as `layout` has it, which is head `part_head` here.
  GateSums sums(std::string_view tensor, const judge::RowLayout& layout, std::size_t head,
                std::size_t part_head, const judge::HeadRows& truth, const tensor::Tensor& answer) const;

 private:
  kda::Answer base_, shifted_;
};

}  // namespace kda_check::engine
