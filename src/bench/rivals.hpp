// Kernels of others: the Python package runs and times them (python/kda_check/_timing.py), where they are
// installed.
#pragma once

#include <string>
#include <vector>

#include "bench/bench.hpp"
#include "bench/contestant.hpp"

namespace kda_check::bench {

/// What --against takes.
const std::vector<std::string>& rival_names();

/// A rival that has already run on the problem, in the pass of the request. Throws Error{environment}, with
/// what was said, for one that cannot run here or cannot take the problem.
Contestant rival(const std::string& name, const kda::Problem& problem, numeric::DType dtype,
                 const BenchRequest& request);

}  // namespace kda_check::bench
