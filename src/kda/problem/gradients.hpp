// The gradients of the loss <o, do> + <final_state, dht> with respect to the tensors as they are stored: one
// row each. Formulas: docs/kda.md, "Backward".
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "kda/problem/outline.hpp"
#include "kda/terms/gradient.hpp"

namespace kda_check::kda {

struct GradientRow {
  Gradient gradient;
  std::string_view name;
  std::string_view of;  ///< the input
};
std::span<const GradientRow> gradients();

/// A gradient exists where its input is there and is used.
bool has_gradient(const Outline& problem, Gradient gradient);

/// One tensor for each gradient, by Gradient; those a problem does not have are empty.
using GradientTensors = std::array<tensor::Tensor, gradient_count>;

/// The element type of a gradient in a run: that of the run in fp64 and fp32; in bf16 and fp16 that of its
/// input, but not above fp32, and fp32 for dinitial_state.
numeric::DType gradient_dtype(const Outline& problem, Gradient gradient, numeric::DType dtype);

/// Memory for the gradients a problem has, uninitialised.
GradientTensors allocate_gradients(const Problem& problem, numeric::DType dtype);

}  // namespace kda_check::kda
