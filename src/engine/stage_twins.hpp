// The stages of answers beside those of twins: the chunk forms that this program emulates, in chunks of the
// same size (hypotheses/spread.hpp, docs/twins.md).
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "engine/twins.hpp"
#include "explain/stages/stage_runs.hpp"

namespace kda_check::engine {

/// The stages of an answer, and whose they are.
struct StagesToJudge {
  const Answered* who;
  const explain::StagedAnswer* stages;
};

/// What twins say of the stages of one answer, by Stage; nothing of those that it has not, that nothing can
/// be said of, or in fp64.
using StageTwins = std::array<std::optional<TwinResult>, kda::stage_count>;

/// One for each of `answers`.
std::vector<StageTwins> judge_stages(const explain::StageSetting& setting,
                                     const std::vector<StagesToJudge>& answers, int threads_of_twins);

/// On how many of `threads` they may run: each holds the stages of a family for one query head, beside the
/// stages and their truth. Throws Error{input} where that is more than `budget` bytes on one.
int threads_for_stage_twins(const kda::Problem& problem, std::size_t chunk_size, kda::Passes passes,
                            int threads, std::size_t budget);

}  // namespace kda_check::engine
