// A closer look at answers that are beyond their twins, when the statistics have said so: the truth is asked
// for again, head by head.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/head_truths.hpp"
#include "judge/spread/twin_test.hpp"

namespace kda_check::engine {

/// One tensor of an answer that is. The references must stay.
struct BeyondTwins {
  std::string tensor;
  const judge::RowLayout& layout;
  const tensor::Tensor& answer;
  judge::Excess worst;
};

struct CloserLook {
  std::string likeness;               ///< engine/likeness.hpp
  std::optional<double> gate_offset;  ///< engine/gate_offset.hpp
};

/// One for each.
std::vector<CloserLook> closer_looks(const kda::Problem& problem, bool has_gate_directions, int threads,
                                     TruthSource& truths, const std::vector<BeyondTwins>& answers);

}  // namespace kda_check::engine
