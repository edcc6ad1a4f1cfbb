// A token for each of many sequences, whose states are in slots of a pool, behind plain data
// (docs/serving.md).
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/problem/request.hpp"

namespace kda_check::cuda {

/// A request without initial and final states: those of sequence n are read from slot slots[n] and stored
/// there.
struct DecodingRequest : Request {
  Output pool;  ///< fp32
  std::vector<std::uint32_t> slots;
};

/// Whether there is a kernel for its shape and arithmetic; else its states have to be brought out of the
/// pool.
bool has_decoding(const Request& request);

/// As `run`; the pool is changed.
void run_decoding(const DecodingRequest& request);

/// Steps on the same pool behind each other, as a server takes them.
inline constexpr int steps_together = 20;
/// Seconds of one of them by the device's clock, after a warm-up.
struct StepSeconds {
  std::vector<double> graph;     ///< of a captured CUDA graph of them all
  std::vector<double> launches;  ///< launched one by one
};
StepSeconds time_decoding(const DecodingRequest& request, int repeats);

}  // namespace kda_check::cuda
