// How far what was timed is from the truth.
#pragma once

#include <span>

#include "bench/contestant.hpp"
#include "kda/truth/oracle.hpp"

namespace kda_check::bench {

/// Fills output_error and state_error of the rows that have an answer to this problem, all of them held
/// against one pass of the oracle.
void measure_errors(std::span<Contestant> contestants, const kda::Problem& problem,
                    const kda::OracleOptions& oracle, int threads);

}  // namespace kda_check::bench
