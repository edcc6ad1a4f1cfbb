// Which launch configuration of a Triton kernel a recorded answer comes from: autotuning picked it, nobody
// wrote it down, and it decides bits (docs/arithmetic.md, "Triton").
#pragma once

#include "engine/answered.hpp"
#include "kda/variants.hpp"

namespace kda_check::engine {

/// A launch, and how many elements differ under it.
struct FoundLaunch {
  kda::Launch launch;
  std::size_t differing = 0;
};

/// Whether a launch decides bits and none is named.
bool has_open_launch(const kda::Variant& variant, const kda::RunOptions& options);

/// Of all launches there are the one that leaves the fewest elements of o and final_state differing from
/// `recorded`, an answer to `problem`.
FoundLaunch launch_of(const kda::Variant& variant, const kda::Problem& problem,
                      const kda::RunOptions& options, const Answered& recorded);

}  // namespace kda_check::engine
