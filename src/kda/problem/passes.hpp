// The two passes through a problem, and the tensors each yields.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kda/problem/outline.hpp"
#include "kda/problem/run.hpp"

namespace kda_check::kda {

enum class Pass : std::uint8_t { forward, backward };
inline constexpr Pass every_pass[] = {Pass::forward, Pass::backward};

std::string_view name_of(Pass pass);

/// o, final_state, checkpoints; the gradients. In the order of reports.
std::vector<std::string> tensors_of(Pass pass);
/// Those a problem has: checkpoints that are asked for; a gradient where there is a loss (do, dht), and its
/// input.
std::vector<std::string> tensors_of(Pass pass, const Outline& problem);

/// The element type of a tensor of either pass in a run in `dtype`.
numeric::DType dtype_of(std::string_view tensor, const Outline& problem, numeric::DType dtype);

/// What one pass yields, by name.
using Tensors = std::map<std::string, tensor::Tensor, std::less<>>;
Tensors clone(const Tensors& tensors);
/// An answer as what the forward pass yields, "state_pool" and "state_scale" where it has a pool.
Tensors by_name(Answer answer);

/// Why there are no gradients of a problem in this arithmetic; empty where there are.
std::string_view lacks_gradients(const Arithmetic& arithmetic, Strength strength);

/// Whether a tensor of either pass has tokens: o, dq, dk, dv, dg, dbeta.
bool has_tokens(std::string_view tensor);

}  // namespace kda_check::kda
