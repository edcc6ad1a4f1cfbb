// Both passes of the CPU variants in any arithmetic, on the GPU: the CPU's kernels (kda/kernels),
// compiled for teams of threads, with the same bits. Plain data in; answers stay on the device.
#pragma once

#include <array>
#include <functional>
#include <span>

#include "cuda/problem/request.hpp"
#include "kda/terms/on_gpu.hpp"

namespace kda_check::cuda {

/// A gradient that is wanted; no elements: it is not.
struct EmulatedGradient {
  numeric::DType dtype = numeric::DType::fp32;
  std::size_t elements = 0;
};

/// One way to compute, in fp32.
struct EmulatedForm {
  bool chunk = false;  ///< the chunk form, else the recurrence
  bool backward = false;
  kda::Arithmetic arithmetic;
  kda::CastPoints casts;
  std::size_t chunk_size = 64;
  numeric::DType dtype = numeric::DType::fp32;  ///< of o; the state is fp32
  /// Of the recurrence: log decays a factor longer, of few enough bits that products are rounded once.
  kda::ScaledDecays scaled = kda::ScaledDecays::none;
  float factor = 1;
  std::array<EmulatedGradient, kda::gradient_count> gradients{};  ///< backwards, by kda::Gradient
};

/// Why this cannot be computed here; empty when it can.
std::string unsupported_emulation(const EmulatedForm& form, const Shape& shape);

/// Takes the answer of a form: forms in their order.
using EmulationDone = std::function<void(std::size_t form, kda::AnswerOnGpu answer)>;

/// All of them, one pass through the same problem, side by side as far as there is memory. Throws as run()
/// does.
void emulate(const ProblemInputs& problem, std::span<const EmulatedForm> forms, const EmulationDone& done);

/// Copies a tensor to the host.
void download(const kda::TensorOnGpu& tensor, void* to);

}  // namespace kda_check::cuda
