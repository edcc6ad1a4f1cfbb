// `run --probe`: what explains the cases that failed.
#pragma once

#include <vector>

#include "session/answers.hpp"

namespace kda_check::session {

/// Fills `probe` of every case that failed against the oracle; `cases` are those of `pairings`, in their
/// order.
void probe_failures(const kda::Problem& problem, const std::vector<Pairing>& pairings,
                    std::vector<report::CaseResult>& cases, int threads);

}  // namespace kda_check::session
