// The forward pass of the CPU variants in any arithmetic, on the GPU: the CPU's kernels (kda/kernels),
// compiled for teams of threads, with the same bits. Plain data in, plain data out.
#pragma once

#include <functional>
#include <span>

#include "gpu.hpp"

namespace kda_check::cuda {

/// One way to compute, in fp32, and where its answer goes.
struct EmulatedForm {
  bool chunk = false;  ///< the chunk form, else the recurrence
  kda::Arithmetic arithmetic;
  kda::CastPoints casts;
  std::size_t chunk_size = 64;
  Output o, final_state;
};

/// Why this cannot be computed here; empty when it can.
std::string unsupported_emulation(const EmulatedForm& form, const Shape& shape);

/// Told of a form whose answer is where it goes: forms in their order.
using EmulationDone = std::function<void(std::size_t form)>;

/// All of them for the same problem, side by side as far as there is memory. Throws as run() does.
void emulate(const ProblemInputs& problem, std::span<const EmulatedForm> forms, const EmulationDone& done);

}  // namespace kda_check::cuda
