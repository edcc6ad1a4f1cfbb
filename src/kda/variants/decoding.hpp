// Calls on a pool of states (kda/pool/pool.hpp) that gpu-recurrent works on as they are: states stay in their
// slots.
#pragma once

#include <vector>

#include "kda/problem/problem.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::kda {

/// One state in fp32 a sequence is read and stored, and there is a kernel for it. Where not, gpu-recurrent
/// runs on the ordinary form of the call, as the other variants do.
bool decodes_in_place(const Problem& problem, const RunOptions& options);

/// Seconds of a step by the device's clock, of many behind each other on the same pool: measured `repeats`
/// times.
struct StepSeconds {
  std::vector<double> graph;     ///< as a captured CUDA graph
  std::vector<double> launches;  ///< launched one by one
};
StepSeconds time_decoding(const Problem& problem, const RunOptions& options, int repeats);

}  // namespace kda_check::kda
