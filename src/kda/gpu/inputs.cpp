#include "kda/gpu/inputs.hpp"

#include <cstring>
#include <optional>
#include <utility>

#include "cuda/device/kept_inputs.hpp"
#include "kda/gpu/kept_inputs.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::kda {

namespace {

cuda::Input input(const tensor::Tensor& tensor) { return {tensor.dtype(), tensor.data(), tensor.size()}; }
cuda::Input input(const std::optional<tensor::Tensor>& tensor) {
  return tensor ? input(*tensor) : cuda::Input{};
}

/// Every element `times` times.
tensor::Tensor repeated(const tensor::Tensor& tensor, std::size_t times, tensor::Shape shape) {
  tensor::Tensor result(tensor.name(), tensor.dtype(), std::move(shape));
  const std::size_t bytes = numeric::format_of(tensor.dtype()).bytes;
  for (std::size_t i = 0; i < result.size(); ++i)
    std::memcpy(result.data() + i * bytes, tensor.data() + i / times * bytes, bytes);
  return result;
}

}  // namespace

std::shared_ptr<const void> kept_on_gpu(const Problem& problem) {
  std::vector<cuda::Input> inputs;
  for (const tensor::Tensor* const tensor : inputs_of(problem)) inputs.push_back(input(*tensor));
  return std::make_shared<const cuda::KeptInputs>(std::move(inputs));
}

std::string without_truth_on_gpu(const Dimensions& dimensions, bool backward) {
  if (dimensions.has_scalar_decay && backward)
    return "the oracle and twins of the gradients of one log decay for all K are computed on the CPU alone";
  if (dimensions.strength == Strength::value)
    return "the oracle and twins with a beta for each column of V are computed on the CPU alone";
  if (dimensions.strength == Strength::gates)
    return "the oracle and twins with erase and write gates are computed on the CPU alone";
  if (dimensions.checkpoints > 0 && !backward)
    return "the oracle and twins of checkpoints are computed on the CPU alone";
  return {};
}

WidenedDecays set_inputs(cuda::ProblemInputs& inputs, const Problem& problem) {
  WidenedDecays widened;
  const Dimensions& d = problem.dimensions();
  if (d.has_scalar_decay) {
    widened.g = repeated(problem.g, d.K, {d.B, d.T, d.HV, d.K});
    if (problem.dt_bias) widened.dt_bias = repeated(*problem.dt_bias, d.K, {d.HV * d.K});
  }
  inputs.dimensions = problem.dimensions();
  inputs.options = problem.options;
  inputs.scale = problem.scale();
  inputs.sequences = problem.sequences();
  inputs.q = input(problem.q), inputs.k = input(problem.k), inputs.v = input(problem.v);
  inputs.g = input(widened.g ? *widened.g : problem.g);
  if (!problem.beta.empty()) inputs.beta = input(problem.beta);
  inputs.erase = input(problem.erase), inputs.write = input(problem.write);
  inputs.A_log = input(problem.A_log);
  inputs.dt_bias = input(widened.dt_bias ? widened.dt_bias : problem.dt_bias);
  inputs.initial_state = input(problem.initial_state);
  return widened;
}

void set_output_gradients(cuda::ProblemInputs& inputs, const Problem& problem) {
  inputs.output_gradient = input(problem.output_gradient);
  inputs.state_gradient = input(problem.state_gradient);
}

}  // namespace kda_check::kda
