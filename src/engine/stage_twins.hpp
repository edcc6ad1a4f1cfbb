// The stages of answers beside those of twins: the chunk forms that this program emulates, in chunks of the
// same size (hypotheses/spread.hpp, docs/verdicts.md).
#pragma once

#include <string>
#include <vector>

#include "engine/answered.hpp"
#include "engine/twin_tensor.hpp"
#include "explain/stages/stage_runs.hpp"

namespace kda_check::engine {

/// The stages of an answer, and whose they are.
struct StagesToJudge {
  const Answered* who;
  const explain::StagedAnswer* stages;
};

/// Nothing of stages that nothing can be said of, or in fp64.
TwinResults judge_stages(const explain::StageSetting& setting, const std::vector<StagesToJudge>& answers,
                         int threads_of_twins);

/// "; as gates make that are off by ..." of the sums of the gates; empty where they are off by other things.
std::string gates_text(const explain::StageSetting& setting, const tensor::Tensor& sums,
                       bool in_powers_of_two);

/// On how many of `threads` they may run: each holds the stages of a family for one query head, beside the
/// stages and their truth. Throws Error{input} where that is more than `budget` bytes on one.
int threads_for_stage_twins(const kda::Problem& problem, std::size_t chunk_size, kda::Passes passes,
                            int threads, std::size_t budget);

}  // namespace kda_check::engine
