// The numbers of a run by name: what a baseline keeps.
#pragma once

#include <span>
#include <string>

#include "judge/baseline.hpp"
#include "report/document.hpp"

namespace kda_check::engine {

/// "chunk", "gpu-chunk@NVIDIA H100 80GB HBM3" where it ran on a GPU, "expected/fla_chunk" where it was
/// recorded.
std::string name_of_answer(const report::CaseResult& item);

/// Which number of a case that is: by the path of its fixture, for two fixtures may call themselves the same.
judge::ReadingKey key_of(const report::CaseResult& item, const std::string& tensor,
                         const std::string& metric);

/// Every metric of every tensor compared. Where two comparisons have the same names (the same problem in
/// chunks of two sizes) the larger value; sound when both passed.
judge::Readings readings_of(std::span<const report::CaseResult> cases);

}  // namespace kda_check::engine
