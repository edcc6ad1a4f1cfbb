#include "kda/passes.hpp"

#include <algorithm>

#include "kda/gradients.hpp"
#include "kda/variants.hpp"

namespace kda_check::kda {

std::string_view name_of(Pass pass) { return pass == Pass::backward ? "backward" : "forward"; }

std::vector<std::string> tensors_of(Pass pass) {
  if (pass == Pass::forward) return {"o", "final_state"};
  std::vector<std::string> names;
  for (const GradientRow& row : gradients()) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> tensors_of(Pass pass, const Outline& problem) {
  if (pass == Pass::forward) return tensors_of(pass);
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
  if (!answer.pool.empty()) tensors.emplace("state_pool", std::move(answer.pool));
  return tensors;
}

Tensors run_pass(Pass pass, const Variant& variant, const Problem& problem, const RunOptions& options) {
  if (pass == Pass::forward) return by_name(variant.run(problem, options));
  Tensors tensors;
  GradientTensors gradients_of_run = variant.run_backward(problem, options);
  for (const GradientRow& row : gradients())
    if (tensor::Tensor& held = gradients_of_run[static_cast<std::size_t>(row.gradient)]; !held.empty())
      tensors.emplace(row.name, std::move(held));
  return tensors;
}

std::string_view lacks_gradients(const Arithmetic& arithmetic, Strength strength) {
  if (strength == Strength::gates && is_triton(arithmetic.reduction))
    return "no backward pass with reduction=triton or triton-rows through erase and write gates";
  return lacks_gradients(arithmetic);
}

bool has_tokens(std::string_view tensor) { return find_spec(tensor)->has(Axis::token); }

}  // namespace kda_check::kda
