#include "kda/heads.hpp"

#include "tensor/rearranged.hpp"

namespace kda_check::kda {

namespace {

/// Elements of dt_bias may lie in one axis, those of a head side by side.
std::vector<std::size_t> channels_of(std::span<const std::size_t> heads, std::size_t K) {
  std::vector<std::size_t> channels;
  for (const std::size_t head : heads)
    for (std::size_t k = 0; k < K; ++k) channels.push_back(head * K + k);
  return channels;
}

}  // namespace

Problem with_heads(const Problem& problem, std::span<const std::size_t> query_heads,
                   std::span<const std::size_t> value_heads) {
  const std::size_t K = problem.dimensions().K;
  const auto by_query = [&](const tensor::Tensor& tensor) { return tensor::picked(tensor, 2, query_heads); };
  const auto by_value = [&](const tensor::Tensor& tensor, std::size_t axis) {
    return tensor::picked(tensor, axis, value_heads);
  };
  Problem some;
  some.options = problem.options;
  some.cu_seqlens = problem.cu_seqlens;
  some.q = by_query(problem.q), some.k = by_query(problem.k);
  some.v = by_value(problem.v, 2), some.g = by_value(problem.g, 2), some.beta = by_value(problem.beta, 2);
  if (problem.A_log) some.A_log = by_value(*problem.A_log, 0);
  if (problem.dt_bias)
    some.dt_bias = problem.dt_bias->shape().size() == 1
                       ? tensor::picked(*problem.dt_bias, 0, channels_of(value_heads, K))
                       : by_value(*problem.dt_bias, 0);
  if (problem.initial_state) some.initial_state = by_value(*problem.initial_state, 1);
  if (problem.output_gradient) some.output_gradient = by_value(*problem.output_gradient, 2);
  if (problem.state_gradient) some.state_gradient = by_value(*problem.state_gradient, 1);
  some.validate();
  return some;
}

}  // namespace kda_check::kda
