#include "kda/problem/excerpt.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tensor/rearranged.hpp"

namespace kda_check::kda {

namespace {

using tensor::Tensor;

/// The same tensor with other extents in front and the blocks of `bytes` that `source_of` names.
template <class SourceOf>
Tensor gathered(const Tensor& source, tensor::Shape shape, std::size_t bytes, SourceOf source_of) {
  Tensor result(source.name(), source.dtype(), std::move(shape));
  for (std::size_t block = 0; block * bytes < result.bytes(); ++block)
    std::memcpy(result.data() + block * bytes, source.data() + source_of(block) * bytes, bytes);
  return result;
}

Tensor with_states_of(const Tensor& states, const std::vector<Sequence>& pieces, const char* name) {
  std::vector<std::size_t> indices;
  for (const Sequence& piece : pieces) indices.push_back(piece.index);
  return tensor::picked(states, 0, indices).named(name);
}

}  // namespace

std::size_t longest_of(const std::vector<Sequence>& sequences) {
  std::size_t longest = 0;
  for (const Sequence& sequence : sequences) longest = std::max(longest, sequence.length());
  return longest;
}

Layout layout_of(const Problem& problem) { return problem.packed() ? Layout::packed : Layout::rows; }

std::size_t row_of(const Problem& problem, const Sequence& sequence, std::size_t token) {
  return sequence.batch * problem.dimensions().T + sequence.begin + token;
}

Problem excerpt(const Problem& whole, const std::vector<Sequence>& pieces, Layout layout,
                const HandedOver& handed) {
  std::vector<std::size_t> rows;
  Problem part;
  part.options = whole.options;
  if (layout == Layout::packed) part.cu_seqlens.push_back(0);
  for (const Sequence& piece : pieces) {
    for (std::size_t t = 0; t < piece.length(); ++t) rows.push_back(row_of(whole, piece, t));
    if (layout == Layout::packed) part.cu_seqlens.push_back(static_cast<std::int64_t>(rows.size()));
  }
  const std::size_t B = layout == Layout::packed ? 1 : pieces.size();
  for (const InputSlot& slot : input_slots) {
    const Tensor* const input = slot.of(whole);
    const TensorSpec& spec = *find_spec(slot.name);
    if (spec.has(Axis::sequence)) {
      const Tensor* const given = slot.name == "initial_state" ? handed.states : handed.state_gradients;
      if (const Tensor* const states = given != nullptr ? given : input)
        slot.set(part, with_states_of(*states, pieces, slot.name.data()));
    } else if (input != nullptr && spec.has(Axis::token)) {
      tensor::Shape shape = input->shape();
      const std::size_t bytes = input->bytes() / (shape[0] * shape[1]);
      shape[0] = B, shape[1] = rows.size() / B;
      slot.set(part, gathered(*input, std::move(shape), bytes, [&](std::size_t row) { return rows[row]; }));
    } else if (input != nullptr) {
      slot.set(part, input->clone());
    }
  }
  part.validate();
  return part;
}

}  // namespace kda_check::kda
