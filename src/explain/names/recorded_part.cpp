#include "explain/names/recorded_part.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "explain/invariants/rearrangement.hpp"
#include "explain/names/attribution.hpp"
#include "kda/problem/heads.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::explain {

namespace {

/// The rows of these tokens, as those of a batch row of their own.
tensor::Tensor first_tokens(const tensor::Tensor& tensor, const kda::Problem& whole,
                            const kda::Sequence& sequence, std::size_t tokens) {
  tensor::Shape shape = tensor.shape();
  const std::size_t width = tensor.size() / (shape[0] * shape[1]);
  shape[0] = 1, shape[1] = tokens;
  tensor::Tensor part(tensor.name(), tensor.dtype(), std::move(shape));
  const std::size_t first = sequence.batch * whole.dimensions().T + sequence.begin;
  std::memcpy(part.data(), tensor.at(first * width), part.bytes());
  return part;
}

}  // namespace

RecordedAnswer::RecordedAnswer(const kda::Problem& problem, kda::Pass pass, const kda::Tensors& answer,
                               numeric::DType dtype)
    : problem_(problem), pass_(pass) {
  for (const std::string& name : kda::tensors_of(pass, problem)) {
    if (name == "ddt_bias") continue;  // decides nothing, and its order depends on all heads
    const auto found = answer.find(name);
    if (found == answer.end()) continue;
    const numeric::DType recorded = found->second.dtype();
    const bool is_pooled = name == "final_state" && numeric::format_of(recorded).bytes == 2;
    if ((recorded != kda::dtype_of(name, problem, dtype) && !is_pooled) ||
        found->second.shape() !=
            kda::expected_shape(*kda::find_spec(name), problem.dimensions(), problem.options.state_v_first))
      continue;
    tensors_.emplace(name, &found->second);
  }
}

tensor::Tensor RecordedAnswer::with_heads(const tensor::Tensor& tensor,
                                          std::span<const std::size_t> queries) const {
  return kda::with_heads(tensor.name(), tensor, queries, kda::value_heads_of(problem_, queries),
                         problem_.dimensions().decays());
}

RecordedPart RecordedAnswer::heads(std::span<const std::size_t> queries) const {
  RecordedPart part{kda::with_heads(problem_, queries, kda::value_heads_of(problem_, queries)), pass_, {}};
  for (const auto& [name, tensor] : tensors_) {
    // The order of its sum depends on how many heads there are.
    if (name == "dA_log" && queries.size() < problem_.dimensions().H) continue;
    part.recorded.emplace(name, with_heads(*tensor, queries));
  }
  return part;
}

RecordedPart RecordedAnswer::first_heads() const {
  constexpr std::size_t enough = 8192;
  const kda::Dimensions& d = problem_.dimensions();
  std::vector<std::size_t> queries(
      std::clamp<std::size_t>(enough / std::max<std::size_t>(d.B * d.T, 1), 1, d.H));
  std::iota(queries.begin(), queries.end(), std::size_t{0});
  return heads(queries);
}

RecordedPart RecordedAnswer::beginning(const kda::Sequence& sequence, std::size_t query,
                                       std::size_t tokens) const {
  const std::size_t queries[] = {query};
  const kda::Problem of_head = kda::with_heads(problem_, queries, kda::value_heads_of(problem_, queries));
  RecordedPart part{excerpt(of_head, {sequence.part(0, tokens)}, Layout::rows), pass_, {}};
  for (const auto& [name, tensor] : tensors_) {
    if (kda::has_tokens(name)) {
      part.recorded.emplace(name, first_tokens(with_heads(*tensor, queries), of_head, sequence, tokens));
    } else if (tokens == sequence.length()) {
      const std::size_t states[] = {sequence.index};
      part.recorded.emplace(name, tensor::picked(with_heads(*tensor, queries), 0, states).named(name));
    }
  }
  return part;
}

kda::Tensors as_recorded(kda::Tensors answer, const kda::Tensors& recorded) {
  for (const auto& [name, expected] : recorded)
    if (tensor::Tensor& ours = answer.at(name); ours.dtype() != expected.dtype())
      ours = ours.converted_to(expected.dtype());
  return answer;
}

std::size_t differing_bits(const kda::Tensors& answer, const kda::Tensors& recorded) {
  std::size_t count = 0;
  for (const auto& [name, expected] : recorded) count += differing_bits(answer.at(name), expected);
  return count;
}

}  // namespace kda_check::explain
