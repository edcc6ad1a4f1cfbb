#include "kda/gradients.hpp"

namespace kda_check::kda {

namespace {

constexpr GradientRow rows_in_order[] = {
    {Gradient::dq, "dq", "q"},
    {Gradient::dk, "dk", "k"},
    {Gradient::dv, "dv", "v"},
    {Gradient::dg, "dg", "g"},
    {Gradient::dbeta, "dbeta", "beta"},
    {Gradient::dinitial_state, "dinitial_state", "initial_state"},
    {Gradient::dA_log, "dA_log", "A_log"},
    {Gradient::ddt_bias, "ddt_bias", "dt_bias"},
};

/// Null where the problem does not have it, or does not use it.
const tensor::Tensor* input_of(const Problem& problem, Gradient gradient) {
  const auto held = [](const std::optional<tensor::Tensor>& tensor) { return tensor ? &*tensor : nullptr; };
  const bool has_gate = problem.options.gate != Gate::none;
  switch (gradient) {
    case Gradient::dq:
      return &problem.q;
    case Gradient::dk:
      return &problem.k;
    case Gradient::dv:
      return &problem.v;
    case Gradient::dg:
      return &problem.g;
    case Gradient::dbeta:
      return &problem.beta;
    case Gradient::dinitial_state:
      return held(problem.initial_state);
    case Gradient::dA_log:
      return has_gate ? held(problem.A_log) : nullptr;
    case Gradient::ddt_bias:
      break;
  }
  return has_gate ? held(problem.dt_bias) : nullptr;
}

}  // namespace

std::span<const GradientRow> gradients() { return rows_in_order; }

bool has_gradient(const Problem& problem, Gradient gradient) {
  return input_of(problem, gradient) != nullptr;
}

numeric::DType gradient_dtype(const Problem& problem, Gradient gradient, numeric::DType dtype) {
  const bool narrow = numeric::format_of(dtype).bytes == 2;
  if (!narrow) return dtype;
  if (gradient == Gradient::dinitial_state) return numeric::DType::fp32;
  const numeric::DType stored = input_of(problem, gradient)->dtype();
  const bool of_run = gradient == Gradient::dq || gradient == Gradient::dk || gradient == Gradient::dv;
  if (of_run) return dtype;
  return stored == numeric::DType::fp64 ? numeric::DType::fp32 : stored;
}

GradientTensors allocate_gradients(const Problem& problem, numeric::DType dtype) {
  GradientTensors tensors;
  for (const GradientRow& row : rows_in_order) {
    if (!has_gradient(problem, row.gradient)) continue;
    tensor::Tensor& tensor = tensors[static_cast<std::size_t>(row.gradient)];
    tensor = tensor::Tensor(
        std::string(row.name), gradient_dtype(problem, row.gradient, dtype),
        expected_shape(*find_spec(row.name), problem.dimensions(), problem.options.state_v_first));
  }
  return tensors;
}

}  // namespace kda_check::kda
