#include "explain/rearrangement.hpp"

#include <cstring>
#include <limits>
#include <utility>

#include "kda/heads.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::explain {

namespace {

using kda::Problem;
using tensor::Tensor;

/// The same tensor with other extents in front and the blocks of `bytes` that `source_of` names.
template <class SourceOf>
Tensor gathered(const Tensor& source, tensor::Shape shape, std::size_t bytes, SourceOf source_of) {
  Tensor result(source.name(), source.dtype(), std::move(shape));
  for (std::size_t block = 0; block * bytes < result.bytes(); ++block)
    std::memcpy(result.data() + block * bytes, source.data() + source_of(block) * bytes, bytes);
  return result;
}

/// The number of batch row and token among all rows.
std::size_t row_of(const Problem& problem, const kda::Sequence& sequence, std::size_t token) {
  return sequence.batch * problem.dimensions().T + sequence.begin + token;
}

Tensor with_states_of(const Tensor& states, const std::vector<kda::Sequence>& pieces) {
  std::vector<std::size_t> indices;
  for (const kda::Sequence& piece : pieces) indices.push_back(piece.index);
  return tensor::picked(states, 0, indices).named("initial_state");
}

/// count - 1, ..., 1, 0
std::vector<std::size_t> descending(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = count - 1 - i;
  return numbers;
}

/// Elements of one token, rotated by one: as large, but another vector.
void rotate(Tensor& tensor, std::size_t row, std::size_t width) {
  const std::size_t first = row * width;
  const double kept = tensor.value(first);
  for (std::size_t i = 0; i + 1 < width; ++i) tensor.set(first + i, -tensor.value(first + i + 1));
  tensor.set(first + width - 1, -kept);
}

void overwrite(const std::byte* from, std::size_t first, std::size_t count, Tensor& whole) {
  std::memcpy(whole.at(first), from, count * numeric::format_of(whole.dtype()).bytes);
}

}  // namespace

Layout layout_of(const Problem& problem) { return problem.packed() ? Layout::packed : Layout::rows; }

Problem excerpt(const Problem& whole, const std::vector<kda::Sequence>& pieces, Layout layout,
                const Tensor* states) {
  std::vector<std::size_t> rows;
  Problem part;
  part.options = whole.options;
  if (layout == Layout::packed) part.cu_seqlens.push_back(0);
  for (const kda::Sequence& piece : pieces) {
    for (std::size_t t = 0; t < piece.length(); ++t) rows.push_back(row_of(whole, piece, t));
    if (layout == Layout::packed) part.cu_seqlens.push_back(static_cast<std::int64_t>(rows.size()));
  }
  const std::size_t B = layout == Layout::packed ? 1 : pieces.size();
  const std::pair<const Tensor*, Tensor*> inputs[] = {{&whole.q, &part.q},
                                                      {&whole.k, &part.k},
                                                      {&whole.v, &part.v},
                                                      {&whole.g, &part.g},
                                                      {&whole.beta, &part.beta}};
  for (const auto& [from, to] : inputs) {
    tensor::Shape shape = from->shape();
    const std::size_t bytes = from->bytes() / (shape[0] * shape[1]);
    shape[0] = B, shape[1] = rows.size() / B;
    *to = gathered(*from, std::move(shape), bytes, [&](std::size_t row) { return rows[row]; });
  }
  if (whole.A_log) part.A_log = whole.A_log->clone();
  if (whole.dt_bias) part.dt_bias = whole.dt_bias->clone();
  if (states == nullptr && whole.initial_state) states = &*whole.initial_state;
  if (states != nullptr) part.initial_state = with_states_of(*states, pieces);
  part.validate();
  return part;
}

void put_back(const kda::Answer& part, const std::vector<kda::Sequence>& pieces, const Problem& whole,
              kda::Answer& answer) {
  const kda::Dimensions& d = whole.dimensions();
  const Tensor o = part.o.converted_to(answer.o.dtype());
  const Tensor state = part.final_state.converted_to(answer.final_state.dtype());
  const std::size_t row = d.HV * d.V, state_size = d.HV * d.K * d.V;
  std::size_t from = 0;
  for (std::size_t n = 0; n < pieces.size(); ++n) {
    const kda::Sequence& piece = pieces[n];
    const std::size_t tokens = piece.length();
    if (tokens > 0) overwrite(o.at(from * row), row_of(whole, piece, 0) * row, tokens * row, answer.o);
    overwrite(state.at(n * state_size), piece.index * state_size, state_size, answer.final_state);
    from += tokens;
  }
}

Problem with_heads_reversed(const Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  return kda::with_heads(problem, descending(d.H), descending(d.HV));
}

kda::Answer with_heads_reversed(const kda::Answer& answer) {
  return {tensor::picked(answer.o, 2, descending(answer.o.shape()[2])),
          tensor::picked(answer.final_state, 1, descending(answer.final_state.shape()[1]))};
}

void replace_tokens(Problem& problem, std::size_t sequence, std::size_t begin, std::size_t end) {
  const kda::Dimensions& d = problem.dimensions();
  const kda::Sequence place = problem.sequences()[sequence];
  for (std::size_t t = begin; t < end; ++t) {
    const std::size_t row = row_of(problem, place, t);
    rotate(problem.q, row, d.H * d.K);
    rotate(problem.k, row, d.H * d.K);
    rotate(problem.v, row, d.HV * d.V);
    if (problem.options.gate != kda::Gate::none)
      rotate(problem.g, row, d.HV * d.K);
    else
      for (std::size_t i = row * d.HV * d.K; i < (row + 1) * d.HV * d.K; ++i) problem.g.set(i, -1e-3);
    for (std::size_t i = row * d.HV; i < (row + 1) * d.HV; ++i)
      problem.beta.set(i, 0.25 + 0.5 * problem.beta.value(i));
  }
}

void make_nan(Problem& problem, std::size_t sequence) {
  const kda::Sequence place = problem.sequences()[sequence];
  const std::size_t rows = problem.dimensions().B * problem.dimensions().T;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (Tensor* const tensor : {&problem.q, &problem.k, &problem.v, &problem.g, &problem.beta}) {
    const std::size_t width = tensor->size() / rows, first = row_of(problem, place, 0) * width;
    for (std::size_t i = first; i < first + place.length() * width; ++i) tensor->set(i, nan);
  }
  if (!problem.initial_state) return;
  const std::size_t size = problem.initial_state->size() / problem.dimensions().N;
  for (std::size_t i = sequence * size; i < (sequence + 1) * size; ++i) problem.initial_state->set(i, nan);
}

kda::Answer clone(const kda::Answer& answer) { return {answer.o.clone(), answer.final_state.clone()}; }

}  // namespace kda_check::explain
