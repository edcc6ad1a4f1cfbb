// `attribute --between A,B`: from one answer to another, one axis of the arithmetic at a time.
#pragma once

#include <vector>

#include "report/attribution.hpp"
#include "session/attribute.hpp"
#include "session/passes.hpp"
#include "session/sources.hpp"

namespace kda_check::session {

/// A and B are variants ("recurrent"), variants in a preset ("chunk+fla") or recorded groups ("fla_chunk"). A
/// recorded group is reached through the variant and preset that emulate it. One ladder for each tensor of
/// `wanted` that both have, from B to A. Throws Error{usage} for a name that is none of these, and for one
/// that does not have the pass.
std::vector<report::Ladder> ladders_between(const Source& source, const kda::Problem& problem,
                                            const PassTensors& wanted, const AttributeRequest& request,
                                            const Log& log);

}  // namespace kda_check::session
