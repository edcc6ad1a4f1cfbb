#include "kda/problem/passes.hpp"

#include <algorithm>

#include "kda/problem/gradients.hpp"

namespace kda_check::kda {

std::string_view name_of(Pass pass) { return pass == Pass::backward ? "backward" : "forward"; }

std::vector<std::string> tensors_of(Pass pass) {
  if (pass == Pass::forward) return {"o", "final_state", "checkpoints"};
  std::vector<std::string> names;
  for (const GradientRow& row : gradients()) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> tensors_of(Pass pass, const Outline& problem) {
  if (pass == Pass::forward && problem.dimensions.checkpoints > 0) return tensors_of(pass);
  if (pass == Pass::forward) return {"o", "final_state"};
  std::vector<std::string> names;
  for (const GradientRow& row : gradients())
    if (problem.has_loss() && has_gradient(problem, row.gradient)) names.emplace_back(row.name);
  return names;
}

numeric::DType dtype_of(std::string_view tensor, const Outline& problem, numeric::DType dtype) {
  for (const GradientRow& row : gradients())
    if (row.name == tensor) return gradient_dtype(problem, row.gradient, dtype);
  return tensor == "o" ? dtype : state_dtype(dtype);
}

Tensors clone(const Tensors& tensors) {
  Tensors copy;
  for (const auto& [name, tensor] : tensors) copy.emplace(name, tensor.clone());
  return copy;
}

Tensors by_name(Answer answer) {
  Tensors tensors;
  tensors.emplace("o", std::move(answer.o));
  tensors.emplace("final_state", std::move(answer.final_state));
  if (!answer.checkpoints.empty()) tensors.emplace("checkpoints", std::move(answer.checkpoints));
  if (!answer.pool.empty()) tensors.emplace("state_pool", std::move(answer.pool));
  if (!answer.scale.empty()) tensors.emplace("state_scale", std::move(answer.scale));
  return tensors;
}

std::string_view lacks_gradients(const Arithmetic& arithmetic, Strength strength) {
  if (strength == Strength::gates && is_triton(arithmetic.reduction))
    return "no backward pass with reduction=triton or triton-rows through erase and write gates";
  return lacks_gradients(arithmetic);
}

bool has_tokens(std::string_view tensor) { return find_spec(tensor)->has(Axis::token); }

}  // namespace kda_check::kda
