// The numbers of a run by name: what a baseline keeps and what `history` follows.
#pragma once

#include "analysis/baseline.hpp"
#include "report/result.hpp"

namespace kda_check::session {

/// "chunk", "gpu-chunk@NVIDIA H100 80GB HBM3" where it ran on a GPU, "expected/fla_chunk" where it was
/// recorded.
std::string name_of_answer(const report::CaseResult& item);

/// Every metric of every tensor compared. Where two comparisons have the same names (the same problem in
/// chunks of two sizes) the larger value; sound when both passed.
analysis::Readings readings_of(const report::Result& result);

}  // namespace kda_check::session
