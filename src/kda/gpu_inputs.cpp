#include "kda/gpu_inputs.hpp"

#include <optional>

#include "tensor/tensor.hpp"

namespace kda_check::kda {

namespace {

cuda::Input input(const tensor::Tensor& tensor) { return {tensor.dtype(), tensor.data(), tensor.size()}; }
cuda::Input input(const std::optional<tensor::Tensor>& tensor) {
  return tensor ? input(*tensor) : cuda::Input{};
}

}  // namespace

void set_inputs(cuda::ProblemInputs& inputs, const Problem& problem) {
  inputs.dimensions = problem.dimensions();
  inputs.options = problem.options;
  inputs.scale = problem.scale();
  inputs.sequences = problem.sequences();
  inputs.q = input(problem.q), inputs.k = input(problem.k), inputs.v = input(problem.v);
  inputs.g = input(problem.g), inputs.beta = input(problem.beta);
  inputs.A_log = input(problem.A_log), inputs.dt_bias = input(problem.dt_bias);
  inputs.initial_state = input(problem.initial_state);
}

void set_output_gradients(cuda::ProblemInputs& inputs, const Problem& problem) {
  inputs.output_gradient = input(problem.output_gradient);
  inputs.state_gradient = input(problem.state_gradient);
}

}  // namespace kda_check::kda
