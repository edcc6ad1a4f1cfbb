// Recorded stages of the chunk form against those of a run, value by value.
#pragma once

#include <vector>

#include "explain/names/bit_search.hpp"

namespace kda_check::explain {

/// Elements of each recorded stage that have another value, of those that count: triangles and ragged tails
/// are masked. Both in the chunks of `options`. `in_powers_of_two`: of the recorded g_cumsum; where the run
/// has it to another base it is left out.
std::vector<Left> differing_stages(const kda::Problem& problem, const kda::Variant& variant,
                                   kda::RunOptions options, const kda::StageTensors& recorded,
                                   bool in_powers_of_two);

}  // namespace kda_check::explain
