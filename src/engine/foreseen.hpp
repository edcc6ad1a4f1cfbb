// Why a chunk form answers what is no number: what `forecast` says of it.
#pragma once

#include <string>

#include "kda/variants/variants.hpp"

namespace kda_check::engine {

/// "decay=reciprocal:16 overflows in its factored tail: exp(222.67) at ...", of a run of `chunk`; empty where
/// its decay is not the reason.
std::string foreseen_overflow(const kda::Problem& problem, const kda::RunOptions& options);

}  // namespace kda_check::engine
