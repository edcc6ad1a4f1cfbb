#include "explain/invariants/rearrangement.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kda/problem/heads.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::explain {

namespace {

using kda::Axis;
using kda::Problem;
using kda::Sequence;
using kda::Tensors;
using tensor::Tensor;

bool has_axis(std::string_view tensor, Axis axis) {
  const kda::TensorSpec* const spec = kda::find_spec(tensor);  // none of what a pool's call answers besides
  return spec != nullptr && spec->has(axis);
}

std::size_t rows_of(const Problem& problem) { return problem.dimensions().B * problem.dimensions().T; }

/// count - 1, ..., 1, 0
std::vector<std::size_t> descending(std::size_t count) {
  std::vector<std::size_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = count - 1 - i;
  return numbers;
}

/// Elements of the tokens of a piece, each token rotated by one: as large, but other vectors.
void rotate(Tensor& tensor, const Problem& problem, const Sequence& piece) {
  const std::size_t width = tensor.size() / rows_of(problem);
  for (std::size_t t = 0; t < piece.length(); ++t) {
    const std::size_t first = row_of(problem, piece, t) * width;
    const double kept = tensor.value(first);
    for (std::size_t i = 0; i + 1 < width; ++i) tensor.set(first + i, -tensor.value(first + i + 1));
    tensor.set(first + width - 1, -kept);
  }
}

/// The tokens of a piece become `value`.
void fill_tokens(Tensor& tensor, const Problem& problem, const Sequence& piece, double value) {
  const std::size_t width = tensor.size() / rows_of(problem), first = row_of(problem, piece, 0) * width;
  for (std::size_t i = 0; i < piece.length() * width; ++i) tensor.set(first + i, value);
}

void fill_state(Tensor& states, const Problem& problem, const Sequence& sequence, double value) {
  const std::size_t size = states.size() / problem.dimensions().N;
  for (std::size_t i = 0; i < size; ++i) states.set(sequence.index * size + i, value);
}

void overwrite(const Tensor& from, std::size_t source, std::size_t first, std::size_t count, Tensor& whole) {
  if (count > 0)
    std::memcpy(whole.at(first), from.at(source), count * numeric::format_of(whole.dtype()).bytes);
}

}  // namespace

bool has_places(std::string_view tensor) {
  return has_axis(tensor, Axis::token) || has_axis(tensor, Axis::sequence);
}

std::vector<Sequence> not_empty(const Problem& problem) {
  std::vector<Sequence> list = problem.sequences();
  std::erase_if(list, [](const Sequence& sequence) { return sequence.length() == 0; });
  return list;
}

std::vector<Sequence> between_neighbours(const std::vector<Sequence>& sequences, std::size_t chunk_size) {
  std::vector<Sequence> pieces;
  for (const Sequence& sequence : sequences) {
    const Sequence neighbour = sequence.part(0, std::min(sequence.length(), chunk_size / 2 + 1));
    if (pieces.empty()) pieces.push_back(neighbour);
    pieces.push_back(sequence);
    pieces.push_back(neighbour);
  }
  return pieces;
}

void put_back(const Tensors& part, const std::vector<Sequence>& pieces, const Problem& whole,
              Tensors& tensors, std::size_t first, std::size_t step) {
  for (auto& [name, target] : tensors) {
    if (!has_places(name)) continue;
    const Tensor source = part.at(name).converted_to(target.dtype());
    const bool has_tokens = has_axis(name, Axis::token);
    const std::size_t size = target.size() / (has_tokens ? rows_of(whole) : whole.dimensions().N);
    std::size_t from = 0;
    for (std::size_t n = 0; n < pieces.size(); ++n) {
      const Sequence& piece = pieces[n];
      const std::size_t count = has_tokens ? piece.length() : 1;
      const std::size_t to = has_tokens ? row_of(whole, piece, 0) : piece.index;
      if (n >= first && (n - first) % step == 0)
        overwrite(source, from * size, to * size, count * size, target);
      from += count;
    }
  }
}

void copy_tokens(const Tensors& from, const std::vector<Sequence>& pieces, const Problem& whole,
                 Tensors& to) {
  for (auto& [name, target] : to) {
    if (!has_axis(name, Axis::token)) continue;
    const Tensor source = from.at(name).converted_to(target.dtype());
    const std::size_t width = target.size() / rows_of(whole);
    for (const Sequence& piece : pieces) {
      const std::size_t at = row_of(whole, piece, 0) * width;
      overwrite(source, at, at, piece.length() * width, target);
    }
  }
}

void clear_tokens(const std::vector<Sequence>& pieces, const Problem& whole, Tensors& tensors) {
  for (auto& [name, tensor] : tensors)
    if (has_axis(name, Axis::token))
      for (const Sequence& piece : pieces) fill_tokens(tensor, whole, piece, 0.0);
}

Problem with_heads_reversed(const Problem& problem) {
  const kda::Dimensions& d = problem.dimensions();
  return kda::with_heads(problem, descending(d.H), descending(d.HV));
}

Tensors with_heads_reversed(const Tensors& tensors, const kda::Dimensions& d) {
  Tensors reversed;
  for (const auto& [name, tensor] : tensors)
    reversed.emplace(name, kda::with_heads(name, tensor, descending(d.H), descending(d.HV), d.decays()));
  return reversed;
}

void replace_tokens(Problem& problem, const Sequence& piece) {
  for (Tensor* const tensor : {&problem.q, &problem.k, &problem.v}) rotate(*tensor, problem, piece);
  if (problem.options.gate != kda::Gate::none)
    rotate(problem.g, problem, piece);
  else
    fill_tokens(problem.g, problem, piece, -1e-3);
  const auto replace = [&](Tensor& strength) {
    const std::size_t width = strength.size() / rows_of(problem), first = row_of(problem, piece, 0) * width;
    for (std::size_t i = first; i < first + piece.length() * width; ++i)
      strength.set(i, 0.25 + 0.5 * strength.value(i));
  };
  if (problem.erase)
    replace(*problem.erase), replace(*problem.write);
  else
    replace(problem.beta);
}

void replace_loss(Problem& problem, const Sequence& piece) {
  rotate(problem.q, problem, piece);
  if (problem.output_gradient) rotate(*problem.output_gradient, problem, piece);
}

void remove_loss(Problem& problem, const Sequence& piece) {
  if (problem.output_gradient) fill_tokens(*problem.output_gradient, problem, piece, 0.0);
  if (problem.state_gradient) fill_state(*problem.state_gradient, problem, piece, 0.0);
}

void make_nan(Problem& problem, const Sequence& sequence) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  problem = kda::with_inputs(problem, [&](const kda::InputSlot& slot, const Tensor& input) {
    Tensor tensor = input.clone();
    if (has_axis(slot.name, Axis::token)) fill_tokens(tensor, problem, sequence, nan);
    if (has_axis(slot.name, Axis::sequence)) fill_state(tensor, problem, sequence, nan);
    return tensor;
  });
}

}  // namespace kda_check::explain
