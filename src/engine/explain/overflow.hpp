// Why an output is no number: what the inputs say of the chunk forms.
#pragma once

#include <string>

#include "engine/answered.hpp"

namespace kda_check::engine {

/// "decay=reciprocal:16 overflows in its factored tail: exp(222.67) at ...", of a run of `chunk`; empty where
/// its decay is not the reason.
std::string forecast_overflow(const kda::Problem& problem, const kda::RunOptions& options);

}  // namespace kda_check::engine
