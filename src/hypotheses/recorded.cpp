#include "hypotheses/recorded.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "hypotheses/errors.hpp"
#include "kda/problem/excerpt.hpp"
#include "kda/problem/heads.hpp"
#include "kda/problem/shapes.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::hypotheses {

namespace {

/// The rows of these tokens, behind one another in one batch row.
tensor::Tensor tokens_of(const tensor::Tensor& tensor, const kda::Problem& whole,
                         const std::vector<kda::Sequence>& pieces) {
  tensor::Shape shape = tensor.shape();
  const std::size_t row = tensor.bytes() / (shape[0] * shape[1]);
  shape[0] = 1, shape[1] = 0;
  for (const kda::Sequence& piece : pieces) shape[1] += piece.length();
  tensor::Tensor part(tensor.name(), tensor.dtype(), std::move(shape));
  std::byte* to = part.data();
  for (const kda::Sequence& piece : pieces) {
    std::memcpy(to, tensor.data() + kda::row_of(whole, piece, 0) * row, piece.length() * row);
    to += piece.length() * row;
  }
  return part;
}

}  // namespace

RecordedOutput::RecordedOutput(const kda::Problem& problem, kda::Pass pass, const kda::Tensors& answer,
                               numeric::DType dtype)
    : problem_(problem), pass_(pass) {
  for (const std::string& name : kda::tensors_of(pass, problem)) {
    if (name == "ddt_bias") continue;     // decides nothing, and its order depends on all heads
    if (name == "checkpoints") continue;  // nor more than the final state does
    const auto found = answer.find(name);
    if (found == answer.end()) continue;
    // Of codes what they may be off by is taken off: which order of sums led to them they do not tell.
    if (name == "final_state" && answer.contains("state_scale")) continue;
    const numeric::DType recorded = found->second.dtype();
    const bool is_pooled = name == "final_state" && numeric::format_of(recorded).bytes == 2;
    if ((recorded != kda::dtype_of(name, problem, dtype) && !is_pooled) ||
        found->second.shape() != kda::shape_of(name, problem))
      continue;
    tensors_.emplace(name, &found->second);
  }
}

tensor::Tensor RecordedOutput::with_heads(const tensor::Tensor& tensor,
                                          std::span<const std::size_t> queries) const {
  return kda::with_heads(tensor.name(), tensor, queries, kda::value_heads_of(problem_, queries),
                         problem_.dimensions().decays());
}

RecordedPart RecordedOutput::heads(std::span<const std::size_t> queries) const {
  RecordedPart part{kda::with_heads(problem_, queries, kda::value_heads_of(problem_, queries)), pass_, {}};
  for (const auto& [name, tensor] : tensors_) {
    // The order of its sum depends on how many heads there are.
    if (name == "dA_log" && queries.size() < problem_.dimensions().H) continue;
    part.recorded.emplace(name, with_heads(*tensor, queries));
  }
  return part;
}

RecordedPart RecordedOutput::first_heads() const {
  constexpr std::size_t enough = 8192;
  const kda::Dimensions& d = problem_.dimensions();
  std::vector<std::size_t> queries(
      std::clamp<std::size_t>(enough / std::max<std::size_t>(d.B * d.T, 1), 1, d.H));
  std::iota(queries.begin(), queries.end(), std::size_t{0});
  return heads(queries);
}

RecordedPart RecordedOutput::parts(std::span<const std::size_t> queries,
                                   const std::vector<kda::Sequence>& pieces,
                                   const kda::HandedOver& handed) const {
  const kda::Problem of_heads = kda::with_heads(problem_, queries, kda::value_heads_of(problem_, queries));
  const kda::Layout layout = pieces.size() == 1 ? kda::Layout::rows : kda::Layout::packed;
  std::vector<std::size_t> states;
  bool is_whole = true;
  const std::vector<kda::Sequence> sequences = problem_.sequences();
  for (const kda::Sequence& piece : pieces) {
    states.push_back(piece.index);
    is_whole = is_whole && piece.length() == sequences[piece.index].length();
  }
  RecordedPart part{kda::excerpt(of_heads, pieces, layout, handed), pass_, {}};
  for (const auto& [name, tensor] : tensors_) {
    if (kda::has_tokens(name))
      part.recorded.emplace(name, tokens_of(with_heads(*tensor, queries), of_heads, pieces));
    else if (is_whole && kda::find_spec(name)->has(kda::Axis::sequence))
      part.recorded.emplace(name, tensor::picked(with_heads(*tensor, queries), 0, states).named(name));
  }
  return part;
}

RecordedPart RecordedOutput::beginning(const kda::Sequence& sequence, std::size_t query,
                                       std::size_t tokens) const {
  return parts(std::array{query}, {sequence.part(0, tokens)});
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

}  // namespace kda_check::hypotheses
