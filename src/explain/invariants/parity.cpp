#include "explain/invariants/parity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <vector>

#include "explain/invariants/rearrangement.hpp"
#include "kda/problem/schema.hpp"
#include "kda/problem/shapes.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::explain {

namespace {

using kda::Pass;
using kda::Problem;
using kda::Sequence;
using kda::Tensors;

/// Every sequence `step` tokens at a time, the state handed over.
Tensors piecewise(const Problem& problem, const Tensors& reference, const Subject& subject,
                  std::size_t step) {
  Tensors got = kda::clone(reference);
  tensor::Tensor states;
  for (std::size_t begin = 0;; begin += step) {
    std::vector<Sequence> pieces;
    for (const Sequence& sequence : problem.sequences())
      if (sequence.length() > begin || begin == 0)  // the first call has those without tokens, too
        pieces.push_back(sequence.part(begin, std::min(begin + step, sequence.length())));
    if (pieces.empty()) return got;
    // Pieces at the end may have several lengths: then they are packed, as an engine would.
    const bool same_length = std::ranges::all_of(
        pieces, [&](const Sequence& piece) { return piece.length() == pieces.front().length(); });
    const Layout layout = same_length ? layout_of(problem) : Layout::packed;
    put_back(solved(subject, excerpt(problem, pieces, layout, {begin == 0 ? nullptr : &states, nullptr})),
             pieces, problem, got);
    states = got.at("final_state").clone();
  }
}

Tensors chunked(const Problem& problem, const Tensors& reference, const Subject& subject) {
  return piecewise(problem, reference, subject, subject.chunk_size);
}
Tensors decoded(const Problem& problem, const Tensors& reference, const Subject& subject) {
  return piecewise(problem, reference, subject, 1);
}

/// Other tokens, and another state where there are states.
void replace(Problem& packed, const Sequence& neighbour) {
  replace_tokens(packed, neighbour);
  if (!packed.initial_state) return;
  tensor::Tensor& states = *packed.initial_state;
  const std::size_t size = states.size() / packed.dimensions().N;
  for (std::size_t i = neighbour.index * size; i < (neighbour.index + 1) * size; ++i)
    states.set(i, 0.25 - states.value(i));
}

Tensors packed(const Problem& problem, const Tensors& reference, const Subject& subject) {
  const std::vector<Sequence> pieces = between_neighbours(problem.sequences(), subject.chunk_size);
  Problem call = excerpt(problem, pieces, Layout::packed);
  const std::vector<Sequence> places = call.sequences();
  for (std::size_t n = 0; n < places.size(); n += 2)
    if (places[n].length() > 0) replace(call, places[n]);
  Tensors got = kda::clone(reference);
  put_back(solved(subject, call), pieces, problem, got, 1, 2);
  return got;
}

/// Every sequence by itself, a batch of one: without tokens it is no call.
Tensors alone(const Problem& problem, const Tensors& reference, const Subject& subject) {
  Tensors got = kda::clone(reference);
  for (const Sequence& sequence : not_empty(problem))
    put_back(solved(subject, excerpt(problem, {sequence}, Layout::rows)), {sequence}, problem, got);
  return got;
}

bool is_zero(const tensor::Tensor& tensor) {
  for (std::size_t i = 0; i < tensor.size(); ++i)
    if (tensor.value(i) != 0) return false;
  return true;
}
/// An initial state of zeros in place of none, or none in place of it.
Tensors other_zero_state(const Problem& problem, const Tensors&, const Subject& subject) {
  Problem other = kda::clone(problem);
  if (other.initial_state)
    other.initial_state.reset();
  else
    other.initial_state = kda::zeros_of("initial_state", problem, numeric::DType::fp32);
  other.validate();
  return solved(subject, other);
}

Tensors other_layout(const Problem& problem, const Tensors&, const Subject& subject) {
  Problem other = kda::clone(problem);
  other.options.state_v_first = !problem.options.state_v_first;
  if (other.initial_state) other.initial_state = tensor::transposed(*other.initial_state);
  if (other.state_gradient) other.state_gradient = tensor::transposed(*other.state_gradient);
  other.validate();
  Tensors got = solved(subject, other);
  for (const char* const states : {"final_state", "checkpoints"})
    if (const auto found = got.find(states); found != got.end())
      found->second = tensor::transposed(found->second);
  return got;
}

struct Way {
  std::string_view name;
  Tensors (*solve)(const Problem&, const Tensors&, const Subject&);
};
constexpr Way ways[] = {
    {"prefill", nullptr},  // the problem as it is, in one piece
    {"chunked", chunked},
    {"decode", decoded},
    {"packed", packed},
    {"alone", alone},
    {"zero state", other_zero_state},
    {"layout", other_layout},
};
/// Of what every pair holds against.
constexpr std::size_t in_one_piece = 0;

bool is_decode(const Way& way) { return way.solve == decoded; }
bool hands_over(const Way& way) { return is_decode(way) || way.solve == chunked; }

/// Whether there is such a way, and it is another call than `prefill`. A program takes too long to be started
/// for every token.
bool exists(const Way& way, const Problem& problem, const Subject& subject) {
  if (hands_over(way) && !subject.state_is_all) return false;
  if (is_decode(way)) return subject.form != judge::Form::unknown && longest_of(problem.sequences()) > 1;
  if (way.solve == chunked) return longest_of(problem.sequences()) > subject.chunk_size;
  if (way.solve == alone) return problem.packed() || problem.dimensions().B > 1;
  if (way.solve == other_zero_state) return !problem.initial_state || is_zero(*problem.initial_state);
  return true;
}

/// Whether it adds in the order of `prefill`.
bool adds_alike(const Way& way, const Problem& problem, const Tensors& reference, const Subject& subject) {
  // Chunks of one token are other sums than those of a chunk.
  if (is_decode(way) && subject.form != judge::Form::recurrence) return false;
  if (hands_over(way)) return subject.adds_as_in_one_call(problem, reference.at("final_state").dtype());
  return !subject.layout_decides || (way.solve != other_zero_state && way.solve != other_layout);
}

Trial trial_of(const Way& way, const Tensors& got, const Way& against, const Tensors& expected,
               bool same_bits, MatrixPlace place) {
  Trial trial{fmt::format("{} against {}", way.name, against.name), same_bits, {}, place};
  for (const std::string& name : kda::tensors_of(Pass::forward))
    if (got.contains(name) && expected.contains(name))
      trial.pairs.push_back({name, got.at(name).clone(), expected.at(name).clone()});
  return trial;
}

/// Elements, `count` from `first` on, whose bits differ.
std::size_t differing(const tensor::Tensor& a, const tensor::Tensor& b, std::size_t first,
                      std::size_t count) {
  const std::size_t bytes = numeric::format_of(a.dtype()).bytes;
  std::size_t number = 0;
  for (std::size_t i = first; i < first + count; ++i)
    number += std::memcmp(a.data() + i * bytes, b.data() + i * bytes, bytes) != 0;
  return number;
}

}  // namespace

std::vector<std::string_view> parity_ways() {
  std::vector<std::string_view> list;
  for (const Way& way : ways) list.push_back(way.name);
  return list;
}

std::string first_difference(const Trial& trial, const Problem& problem) {
  for (const Pair& pair : trial.pairs) {
    const std::size_t all = differing(pair.got, pair.expected, 0, pair.got.size());
    if (all == 0) continue;
    const double share = 100.0 * static_cast<double>(all) / static_cast<double>(pair.got.size());
    if (!kda::has_tokens(pair.name)) return fmt::format("{}, {:.2g} % of it", pair.name, share);
    const kda::Dimensions& d = problem.dimensions();
    const std::size_t width = pair.got.size() / (d.B * d.T);
    std::size_t first = d.T;
    for (const Sequence& sequence : problem.sequences())
      for (std::size_t t = 0; t < std::min(first, sequence.length()); ++t)
        if (differing(pair.got, pair.expected, row_of(problem, sequence, t) * width, width) > 0) first = t;
    return fmt::format("{} t={}, {:.2g} % of it", pair.name, first, share);
  }
  return {};
}

std::string parity_inapplicable(const Problem& problem, Pass pass) {
  if (pass == Pass::backward) return "the matrix is of the forward pass";
  return not_empty(problem).empty() ? "there is no token" : "";
}

void run_parity(const Problem& problem, const Tensors& reference, const Subject& subject,
                const std::function<void(Trial)>& sink) {
  const auto alike = [&](const Way& way) { return adds_alike(way, problem, reference, subject); };
  std::vector<std::optional<Tensors>> got;
  for (std::size_t row = 0; row < std::size(ways); ++row) {
    got.emplace_back();
    if (row == in_one_piece || !exists(ways[row], problem, subject)) continue;
    got.back() = ways[row].solve(problem, reference, subject);
    for (std::size_t column = 0; column < row; ++column)
      if (column == in_one_piece || got[column])
        sink(trial_of(ways[row], *got[row], ways[column], column == in_one_piece ? reference : *got[column],
                      alike(ways[row]) && alike(ways[column]), {row, column}));
  }
}

}  // namespace kda_check::explain
