// `run --probe`: which mis-reading of a problem explains a failure (docs/probe.md).
#pragma once

#include "engine/answered.hpp"
#include "kda/problem/problem.hpp"
#include "report/document.hpp"

namespace kda_check::engine {

/// Of a case that failed against the oracle, forwards.
report::ProbeResult probed(const kda::Problem& problem, const Answered& got, const report::CaseResult& failed,
                           int threads);

}  // namespace kda_check::engine
