// Why an output is no number: what the inputs say of the chunk forms.
#pragma once

#include <string>

#include "engine/answered.hpp"

namespace kda_check::engine {

/// "decay=reciprocal:16 overflows in its factored tail: exp(222.67) at ...", of a run of `chunk`; empty where
/// its decay is not the reason.
std::string foreseen_overflow(const kda::Problem& problem, const kda::RunOptions& options);

/// "as decay=factored:32 in chunks of 32, which overflows: exp(151.90) at ...", of an output that is not
/// finite from the same chunks on; empty where no such form is.
std::string overflow_like(const kda::Problem& problem, const Answered& got, int threads);

}  // namespace kda_check::engine
