#include "kda/problem/heads.hpp"

#include <algorithm>

#include "tensor/rearranged.hpp"

namespace kda_check::kda {

namespace {

/// Elements of dt_bias may lie in one axis, those of a head side by side.
std::vector<std::size_t> channels_of(std::span<const std::size_t> heads, std::size_t decays) {
  std::vector<std::size_t> channels;
  for (const std::size_t head : heads)
    for (std::size_t k = 0; k < decays; ++k) channels.push_back(head * decays + k);
  return channels;
}

}  // namespace

std::vector<std::size_t> value_heads_of(const Problem& problem, std::span<const std::size_t> query_heads) {
  const std::size_t group = problem.heads_per_group();
  std::vector<std::size_t> heads;
  for (const std::size_t query : query_heads)
    for (std::size_t member = 0; member < group; ++member) heads.push_back(query * group + member);
  return heads;
}

tensor::Tensor with_heads(std::string_view name, const tensor::Tensor& tensor,
                          std::span<const std::size_t> query_heads, std::span<const std::size_t> value_heads,
                          std::size_t decays) {
  const std::span<const Axis> axes = find_spec(name)->axis_list();
  if (axes[0] == Axis::value_head_decay && tensor.shape().size() == 1)
    return tensor::picked(tensor, 0, channels_of(value_heads, decays));
  const auto axis = std::ranges::find_if(axes, [](Axis candidate) {
    return candidate == Axis::head || candidate == Axis::value_head || candidate == Axis::value_head_decay;
  });
  return tensor::picked(tensor, static_cast<std::size_t>(axis - axes.begin()),
                        *axis == Axis::head ? query_heads : value_heads);
}

Problem with_heads(const Problem& problem, std::span<const std::size_t> query_heads,
                   std::span<const std::size_t> value_heads) {
  return with_inputs(problem, [&](const InputSlot& slot, const tensor::Tensor& tensor) {
    return with_heads(slot.name, tensor, query_heads, value_heads, problem.dimensions().decays());
  });
}

}  // namespace kda_check::kda
