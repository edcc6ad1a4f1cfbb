// Which launch configuration of a Triton kernel a recorded answer comes from: autotuning picked it, nobody
// wrote it down, and it decides bits (docs/arithmetic.md, "Triton").
#pragma once

#include "hypotheses/recorded.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::hypotheses {

/// Whether a launch decides bits and none is named.
bool has_open_launch(const kda::Variant& variant, const kda::RunOptions& options);

/// Of all launches there are the one that leaves the fewest elements of what is recorded differing, from the
/// launch in `options` on. That where nothing is recorded.
kda::Launch launch_of(const kda::Variant& variant, const RecordedPart& part, const kda::RunOptions& options);

}  // namespace kda_check::hypotheses
