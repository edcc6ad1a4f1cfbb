#include "kda/problem/gradients.hpp"

#include "kda/problem/shapes.hpp"

namespace kda_check::kda {

namespace {

constexpr GradientRow gradients_in_order[] = {
    {Gradient::dq, "dq", "q"},
    {Gradient::dk, "dk", "k"},
    {Gradient::dv, "dv", "v"},
    {Gradient::dg, "dg", "g"},
    {Gradient::dbeta, "dbeta", "beta"},
    {Gradient::dinitial_state, "dinitial_state", "initial_state"},
    {Gradient::dA_log, "dA_log", "A_log"},
    {Gradient::ddt_bias, "ddt_bias", "dt_bias"},
    {Gradient::derase, "derase", "erase"},
    {Gradient::dwrite, "dwrite", "write"},
};

/// The element type of the input; nullopt where the problem does not have it, or does not use it.
std::optional<numeric::DType> dtype_of_input(const Outline& problem, Gradient gradient) {
  const bool of_gate = gradient == Gradient::dA_log || gradient == Gradient::ddt_bias;
  if (of_gate && problem.options.gate == Gate::none) return std::nullopt;
  return problem.dtype_of(gradients_in_order[static_cast<std::size_t>(gradient)].of);
}

}  // namespace

std::span<const GradientRow> gradients() { return gradients_in_order; }

bool has_gradient(const Outline& problem, Gradient gradient) {
  return dtype_of_input(problem, gradient).has_value();
}

numeric::DType gradient_dtype(const Outline& problem, Gradient gradient, numeric::DType dtype) {
  const bool narrow = numeric::format_of(dtype).bytes == 2;
  if (!narrow) return dtype;
  if (gradient == Gradient::dinitial_state) return numeric::DType::fp32;
  const numeric::DType stored = *dtype_of_input(problem, gradient);
  const bool of_run = gradient == Gradient::dq || gradient == Gradient::dk || gradient == Gradient::dv;
  if (of_run) return dtype;
  return stored == numeric::DType::fp64 ? numeric::DType::fp32 : stored;
}

GradientTensors allocate_gradients(const Problem& problem, numeric::DType dtype) {
  GradientTensors tensors;
  const Outline outline(problem);
  for (const GradientRow& row : gradients_in_order) {
    if (!has_gradient(outline, row.gradient)) continue;
    tensor::Tensor& tensor = tensors[static_cast<std::size_t>(row.gradient)];
    tensor = tensor::Tensor(std::string(row.name), gradient_dtype(outline, row.gradient, dtype),
                            shape_of(row.name, problem));
  }
  return tensors;
}

}  // namespace kda_check::kda
