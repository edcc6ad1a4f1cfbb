// From one answer to another, one axis of the arithmetic at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kda/variants/variants.hpp"

namespace kda_check::explain {

/// One step.
struct Rung {
  std::string change;         ///< "contraction=fused"
  double remaining = 0;       ///< rms_ratio of what still differs from the goal
  std::size_t differing = 0;  ///< elements whose bits differ from the goal
  double share = 0;           ///< of the difference between the ends
};

struct Ladder {
  std::string tensor;
  std::size_t elements = 0;
  std::vector<Rung> rungs;  ///< the first is the start, with everything remaining
};

/// One end of a ladder. Steps are taken on the CPU, by `variant` in `options`; where the answer itself comes
/// from elsewhere - a file or a GPU - it is `answered`, and the variant computes as whoever answered.
struct LadderEnd {
  std::string name;
  const kda::Variant* variant = nullptr;
  kda::RunOptions options;
  const kda::Tensors* answered = nullptr;
};

/// One ladder for each of `tensors` that both ends have, from `from` to `to`. `progress` is told every step.
std::vector<Ladder> ladders_between(const LadderEnd& from, const LadderEnd& to, kda::Pass pass,
                                    const kda::Problem& problem, const std::vector<std::string>& tensors,
                                    const std::function<void(const std::string&)>& progress);

}  // namespace kda_check::explain
