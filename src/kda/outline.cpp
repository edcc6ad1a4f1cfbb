#include "kda/outline.hpp"

#include <algorithm>

namespace kda_check::kda {

namespace {

const tensor::Tensor* input_named(const Problem& problem, std::string_view name) {
  const std::pair<std::string_view, const tensor::Tensor*> always[] = {
      {"q", &problem.q}, {"k", &problem.k}, {"v", &problem.v}, {"g", &problem.g}, {"beta", &problem.beta}};
  for (const auto& [known, tensor] : always)
    if (known == name) return tensor;
  const std::pair<std::string_view, const std::optional<tensor::Tensor>*> sometimes[] = {
      {"A_log", &problem.A_log},
      {"dt_bias", &problem.dt_bias},
      {"initial_state", &problem.initial_state},
      {"do", &problem.output_gradient},
      {"dht", &problem.state_gradient}};
  for (const auto& [known, tensor] : sometimes)
    if (known == name && *tensor) return &**tensor;
  return nullptr;
}

template <class Body>
void over_inputs(const Problem& problem, Body body) {
  for (const TensorSpec& spec : tensor_specs())
    if (spec.group == TensorGroup::input)
      if (const tensor::Tensor* const tensor = input_named(problem, spec.name)) body(spec.name, *tensor);
}

bool is_rounded(std::string_view input) {
  return input == "q" || input == "k" || input == "v" || input == "do";
}

}  // namespace

Outline::Outline(const Problem& problem)
    : options(problem.options), dimensions(problem.dimensions()), cu_seqlens(problem.cu_seqlens) {
  over_inputs(problem, [&](std::string_view name, const tensor::Tensor& tensor) {
    inputs.emplace_back(name, tensor.dtype());
  });
}

std::optional<numeric::DType> Outline::dtype_of(std::string_view input) const {
  for (const auto& [name, dtype] : inputs)
    if (name == input) return dtype;
  return std::nullopt;
}

bool Outline::beta_is_16_bit() const {
  return !options.beta_sigmoid && numeric::format_of(*dtype_of("beta")).bytes == 2;
}

Outline Outline::rounded_to(numeric::DType dtype) const {
  Outline copy = *this;
  for (auto& [name, stored] : copy.inputs)
    if (is_rounded(name)) stored = dtype;
  return copy;
}

std::vector<const tensor::Tensor*> inputs_of(const Problem& problem) {
  std::vector<const tensor::Tensor*> list;
  over_inputs(problem, [&](std::string_view, const tensor::Tensor& tensor) { list.push_back(&tensor); });
  return list;
}

}  // namespace kda_check::kda
