// The forward pass of CPU variants, computed on the GPU: the same kernels, the same bits
// (cuda/emulation.hpp). For many answers to one problem, as twins are.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "kda/problem.hpp"
#include "kda/variants.hpp"

namespace kda_check::kda {

/// A CPU variant and how it is to compute.
struct Emulated {
  const Variant* variant;
  const RunOptions* options;
};

/// Why the GPU cannot answer for it; empty when it can. Not in fp64.
std::string not_emulated_on_gpu(const Emulated& wanted, const Outline& problem);

/// Takes the answers in the order they are wanted in, each as soon as it is there.
using EmulatedSink = std::function<void(std::size_t wanted, Answer answer)>;

/// The answers of all of them. Throws as Variant::run() of GPU variants does.
void emulate_on_gpu(const Problem& problem, const std::vector<Emulated>& wanted, const EmulatedSink& sink);

}  // namespace kda_check::kda
