// What a call on a pool of states leaves besides the states that it computes: slots, scales, rings, padding.
#pragma once

#include "engine/answered.hpp"

namespace kda_check::engine {

/// Appends them to the tensors of the case, whose others are `tensors`. False: no states are judged.
bool judge_pool(const kda::PoolCall& call, const Answered& got, const plan::Names& tensors, int threads,
                report::CaseResult& result);

}  // namespace kda_check::engine
