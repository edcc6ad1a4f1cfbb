// Both passes of CPU variants, computed on the GPU: the same kernels, the same bits
// (cuda/spread/emulation.hpp). For many answers to one problem, as twins are.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "kda/problem/passes.hpp"
#include "kda/problem/problem.hpp"
#include "kda/terms/on_gpu.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::kda {

/// A CPU variant and how it is to compute; of the recurrence `factor` times the log decays that `scaled` says
/// (kda/bounds/scaled_decays.hpp).
struct Emulated {
  const Variant* variant;
  const RunOptions* options;
  Pass pass = Pass::forward;
  ScaledDecays scaled = ScaledDecays::none;
  float factor = 1;
};

/// Why the GPU cannot answer for it; empty when it can. Not in fp64.
std::string not_emulated_on_gpu(const Emulated& wanted, const Outline& problem);

/// Takes the answers in the order they are wanted in, each as soon as it is there. It stays on the GPU.
using EmulatedSink = std::function<void(std::size_t wanted, AnswerOnGpu answer)>;

/// The answers of all of them, to one pass. Throws as Variant::run() of GPU variants does.
void emulate_on_gpu(const Problem& problem, const std::vector<Emulated>& wanted, const EmulatedSink& sink);

/// The same answer in memory of the host: o and final_state, or gradients.
Tensors downloaded(const AnswerOnGpu& answer, const Problem& problem);
/// The elements of a tensor, one after the other.
tensor::Tensor downloaded(const TensorOnGpu& on_gpu, std::string_view name);
/// That of an answer; no elements: it has none.
const TensorOnGpu& tensor_of(const AnswerOnGpu& answer, std::string_view name);

}  // namespace kda_check::kda
