// `attribute --between A,B`: from one answer to another, one axis of the arithmetic at a time.
#pragma once

#include <vector>

#include "report/attribution.hpp"
#include "session/attribute.hpp"
#include "session/sources.hpp"

namespace kda_check::session {

/// A and B are variants ("recurrent"), variants in a preset ("chunk+fla") or recorded groups ("fla_chunk"). A
/// recorded group is reached through the variant and preset that emulate it. One ladder for o and one for the
/// final state, from B to A. Throws Error{usage} for a name that is none of these.
std::vector<report::Ladder> ladders_between(const Source& source, const kda::Problem& problem,
                                            const AttributeRequest& request, const Log& log);

}  // namespace kda_check::session
