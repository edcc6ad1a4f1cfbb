#include "explain/invariants/invariants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "explain/invariants/parity.hpp"
#include "explain/invariants/rearrangement.hpp"
#include "explain/invariants/serving.hpp"
#include "kda/problem/shapes.hpp"

namespace kda_check::explain {

namespace {

using kda::Pass;
using kda::Problem;
using kda::Sequence;
using kda::Tensors;
using Sink = std::function<void(Trial)>;

/// Those that `concerns`, against the same of the reference or of `expected`.
std::vector<Pair> pairs_of(Tensors got, bool (*concerns)(std::string_view), Tensors expected = {}) {
  std::vector<Pair> pairs;
  for (const Pass pass : kda::every_pass)
    for (const std::string& name : kda::tensors_of(pass))
      if (got.contains(name) && concerns(name))
        pairs.push_back({name, std::move(got.at(name)),
                         expected.contains(name) ? std::move(expected.at(name)) : tensor::Tensor()});
  return pairs;
}
bool every_tensor(std::string_view) { return true; }

/// -0 becomes +0: no gradient is either.
Tensors without_signs_of_zeros(Tensors tensors) {
  for (auto& [name, tensor] : tensors)
    for (std::size_t i = 0; i < tensor.size(); ++i)
      if (tensor.value(i) == 0) tensor.set(i, 0);
  return tensors;
}

std::string always(const Problem&, Pass) { return {}; }
std::string needs_two_tokens(const Problem& problem, Pass) {
  return longest_of(problem.sequences()) > 1 ? "" : "no sequence has two tokens";
}
std::string needs_two_tokens_in_the_loss(const Problem& problem, Pass pass) {
  if (pass == Pass::backward && !problem.output_gradient) return "there is no do";
  return needs_two_tokens(problem, pass);
}
std::string needs_two_heads(const Problem& problem, Pass) {
  return problem.dimensions().HV > 1 ? "" : "there is one head";
}

// --- repeat

void repeat(const Problem& problem, const Tensors&, const Subject& subject, const Sink& sink) {
  for (const char* const what : {"second run", "third run"})
    sink({what, true, pairs_of(solved(subject, problem), every_tensor)});
}

// --- causality

/// Sequences longer than `cut`, before it and from it on.
struct Cut {
  std::vector<Sequence> before, behind;

  Cut(const Problem& problem, std::size_t cut) {
    for (const Sequence& sequence : problem.sequences()) {
      if (sequence.length() <= cut) continue;
      before.push_back(sequence.part(0, cut));
      behind.push_back(sequence.part(cut, sequence.length()));
    }
  }
};

/// What is left before a cut where the tokens from it on are left out, the rest being `reference`.
Tensors left_out(const Problem& problem, const Tensors& reference, const Subject& subject, const Cut& cut) {
  Tensors kept = kda::clone(reference);
  put_back(solved(subject, excerpt(problem, cut.before, layout_of(problem))), cut.before, problem, kept);
  return kept;
}

/// The same where they are others.
Tensors replaced(const Problem& problem, const Tensors& reference, const Subject& subject, const Cut& cut) {
  Problem changed = kda::clone(problem);
  for (const Sequence& piece : cut.behind) replace_tokens(changed, piece);
  Tensors kept = kda::clone(reference);
  copy_tokens(solved(subject, changed), cut.before, problem, kept);
  return kept;
}

void outputs_before(const Problem& problem, const Tensors& reference, const Subject& subject,
                    std::size_t token, bool same_bits, const Sink& sink) {
  const Cut cut(problem, token);
  sink({fmt::format("tokens from {} on left out", token), same_bits,
        pairs_of(left_out(problem, reference, subject, cut), kda::has_tokens)});
  sink({fmt::format("tokens from {} on replaced", token), same_bits,
        pairs_of(replaced(problem, reference, subject, cut), kda::has_tokens)});
}

/// dg is a sum to the end of the chunk, in an order that may be one from there.
bool is_no_sum_to_the_end(std::string_view name) { return kda::has_tokens(name) && name != "dg"; }

/// Gradients come from the loss of later tokens, and of these alone.
void gradients_around(const Problem& problem, const Tensors& reference, const Subject& subject,
                      std::size_t token, bool same_bits, const Sink& sink) {
  const Cut cut(problem, token);
  Problem other = kda::clone(problem);
  for (const Sequence& piece : cut.before) replace_loss(other, piece);
  Tensors later = kda::clone(reference);
  copy_tokens(solved(subject, other), cut.behind, problem, later);
  sink({fmt::format("q and do before token {} replaced", token), true,
        pairs_of(std::move(later), kda::has_tokens)});

  Problem ended = kda::clone(problem);
  for (const Sequence& piece : cut.behind) remove_loss(ended, piece);
  const Tensors base = solved(subject, ended);
  const std::string what = fmt::format("no loss from token {} on", token);
  Tensors nothing_behind = kda::clone(base);
  clear_tokens(cut.behind, problem, nothing_behind);
  sink({what, true,
        pairs_of(without_signs_of_zeros(kda::clone(base)), kda::has_tokens,
                 without_signs_of_zeros(std::move(nothing_behind)))});
  if (!same_bits) return;  // the truth of another loss is not known
  const bool same_end = subject.form == judge::Form::recurrence || token % subject.chunk_size == 0;
  sink({what + ", tokens left out", true,
        pairs_of(without_signs_of_zeros(left_out(ended, base, subject, cut)),
                 same_end ? kda::has_tokens : is_no_sum_to_the_end,
                 without_signs_of_zeros(kda::clone(base)))});
  sink({what + ", tokens replaced", true,
        pairs_of(without_signs_of_zeros(replaced(ended, base, subject, cut)), kda::has_tokens,
                 without_signs_of_zeros(kda::clone(base)))});
}

void causality(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  const std::size_t longest = longest_of(problem.sequences()), C = subject.chunk_size;
  std::vector<std::size_t> cuts{longest - 1, longest * 5 / 8, std::min(C, longest - 1)};
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (const std::size_t cut : cuts) {
    if (cut == 0) continue;
    const bool same_bits = !subject.reads_ahead || cut % C == 0;
    const auto try_it = subject.pass == Pass::forward ? outputs_before : gradients_around;
    try_it(problem, reference, subject, cut, same_bits, sink);
  }
}

// --- split

/// Uneven cuts, and those beside the ends of chunks.
std::vector<std::size_t> cuts_of(std::size_t length, std::size_t C) {
  std::vector<std::size_t> cuts;
  for (const std::size_t cut :
       {std::size_t{1}, C - 1, C, C + 1, length * 13 / 25, (length - 1) / C * C, length - 1})
    if (cut > 0 && cut < length) cuts.push_back(cut);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

void split(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  const Layout layout = layout_of(problem);
  for (const std::size_t cut : cuts_of(longest_of(problem.sequences()), subject.chunk_size)) {
    const bool ends_chunk = subject.form == judge::Form::recurrence || cut % subject.chunk_size == 0;
    if (!ends_chunk && subject.pass == Pass::backward) continue;
    std::vector<Sequence> first;
    for (const Sequence& sequence : problem.sequences())
      first.push_back(sequence.part(0, std::min(cut, sequence.length())));
    const std::vector<Sequence> second = Cut(problem, cut).behind;
    Tensors begun = subject.solve(excerpt(problem, first, layout), Pass::forward, Fill::whatever);
    const bool same_bits =
        ends_chunk && subject.adds_as_in_one_call(problem, begun.at("final_state").dtype());
    const Tensors ended =
        solved(subject, excerpt(problem, second, layout, {&begun.at("final_state"), nullptr}));
    if (subject.pass == Pass::backward) {
      const numeric::DType handed = ended.at("dinitial_state").dtype();
      Tensors gradients;
      gradients.emplace("dinitial_state", problem.state_gradient
                                              ? problem.state_gradient->converted_to(handed)
                                              : kda::zeros_of("dht", problem, handed));
      put_back(ended, second, problem, gradients);
      begun = solved(subject, excerpt(problem, first, layout, {nullptr, &gradients.at("dinitial_state")}));
    }
    Tensors got = kda::clone(reference);
    // What both have, a state, is of the part that was run last.
    const bool forward = subject.pass == Pass::forward;
    put_back(forward ? begun : ended, forward ? first : second, problem, got);
    put_back(forward ? ended : begun, forward ? second : first, problem, got);
    sink({fmt::format("cut at {}", cut), same_bits, pairs_of(std::move(got), has_places)});
  }
}

// --- resume

std::string needs_checkpoints(const Problem& problem, Pass pass) {
  if (problem.checkpoints.empty()) return "no states inside sequences are asked for";
  return pass == Pass::forward ? "" : "checkpoints have no gradients";
}

/// What follows is computed from checkpoints, some of each sequence after another.
void resume(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  constexpr std::size_t most = 8;
  const tensor::Tensor& checkpoints = reference.at("checkpoints");
  const std::vector<Sequence> sequences = problem.sequences();
  const std::size_t bytes = checkpoints.bytes() / problem.checkpoints.size();
  // In fewer bits than states have they are the beginning of another problem.
  if (checkpoints.dtype() != reference.at("final_state").dtype()) return;
  std::vector<std::size_t> next(sequences.size(), 0);  // tokens of the checkpoint that is tried
  for (std::size_t trial = 0; trial < most; ++trial) {
    tensor::Tensor states = reference.at("final_state").clone();
    std::vector<Sequence> rest;
    bool ends_chunk = true;
    for (const Sequence& sequence : sequences) {
      std::size_t tokens = next[sequence.index];
      if (!problem.has_state(sequence, tokens)) tokens = problem.next_state(sequence, tokens);
      if (tokens >= sequence.length()) continue;
      next[sequence.index] = problem.next_state(sequence, tokens);
      problem.for_checkpoints(sequence.index, tokens, [&](std::size_t row) {
        std::memcpy(states.data() + sequence.index * bytes, checkpoints.data() + row * bytes, bytes);
      });
      rest.push_back(sequence.part(tokens, sequence.length()));
      ends_chunk =
          ends_chunk && (subject.form == judge::Form::recurrence || tokens % subject.chunk_size == 0);
    }
    if (rest.empty()) return;
    const bool alike =
        std::ranges::all_of(rest, [&](const Sequence& s) { return s.length() == rest[0].length(); });
    const Layout layout = alike ? layout_of(problem) : Layout::packed;
    Tensors got = kda::clone(reference);
    put_back(solved(subject, excerpt(problem, rest, layout, {&states, nullptr})), rest, problem, got);
    sink({fmt::format("from checkpoint {} of each sequence", trial),
          ends_chunk && subject.adds_as_in_one_call(problem, states.dtype()),
          pairs_of(std::move(got), has_places)});
  }
}

// --- batch and heads

void batch(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  const std::vector<Sequence> sequences = problem.sequences();
  std::vector<Sequence> pieces;
  for (std::size_t n = sequences.size(); n-- > 0;) pieces.push_back(sequences[n]);
  Tensors got = kda::clone(reference);
  if (pieces.size() > 1) {
    put_back(solved(subject, excerpt(problem, pieces, layout_of(problem))), pieces, problem, got);
    sink({"sequences in reverse order", true, pairs_of(std::move(got), has_places)});
    return;
  }
  pieces.push_back(pieces.front());  // it, behind another as long
  Problem two = excerpt(problem, pieces, layout_of(problem));
  replace_tokens(two, two.sequences().front());
  put_back(solved(subject, two), pieces, problem, got, 1, 2);
  sink({"behind another sequence", true, pairs_of(std::move(got), has_places)});
}

/// Of more than two value heads the sum that a query head's gradients are has another order then.
bool is_no_sum_over_heads(std::string_view name) { return name != "dq" && name != "dk"; }

void heads(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  Tensors got = with_heads_reversed(solved(subject, with_heads_reversed(problem)), problem.dimensions());
  // What came from a pool may be stored in fewer bits.
  for (auto& [name, tensor] : got) tensor = tensor.converted_to(reference.at(name).dtype());
  sink({"heads in reverse order", true,
        pairs_of(std::move(got), problem.heads_per_group() > 2 ? is_no_sum_over_heads : every_tensor)});
}

// --- neighbour

/// The neighbours are finite, then NaN.
void neighbour(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  const std::vector<Sequence> pieces = between_neighbours(not_empty(problem), subject.chunk_size);
  Problem packed = excerpt(problem, pieces, Layout::packed);
  const std::vector<Sequence> places = packed.sequences();
  Tensors expected = kda::clone(reference), got = kda::clone(reference);
  put_back(solved(subject, packed), pieces, problem, expected, 1, 2);
  for (std::size_t n = 0; n < pieces.size(); n += 2) make_nan(packed, places[n]);
  put_back(solved(subject, packed), pieces, problem, got, 1, 2);
  sink({"NaN before and behind", true, pairs_of(std::move(got), has_places, std::move(expected))});
}

// --- memory

void poison(const Problem& problem, const Tensors&, const Subject& subject, const Sink& sink) {
  sink({"memory full of NaN", true, pairs_of(solved(subject, problem, Fill::nan), every_tensor)});
  sink({"memory full of large numbers", true, pairs_of(solved(subject, problem, Fill::huge), every_tensor)});
}

void inputs(const Problem& problem, const Tensors&, const Subject& subject, const Sink& sink) {
  const Problem after = subject.inputs_after(problem);
  Trial trial{"inputs afterwards", true, {}};
  for (const kda::InputSlot& slot : kda::input_slots) {
    const tensor::Tensor *const before = slot.of(problem), *const then = slot.of(after);
    if (before != nullptr && then != nullptr)
      trial.pairs.push_back({std::string(slot.name), then->clone(), before->clone()});
  }
  sink(std::move(trial));
}

constexpr Invariant rows[] = {
    {"repeat", always, repeat},
    {"causality", needs_two_tokens_in_the_loss, causality},
    {"split", needs_two_tokens, split, false, false, Premise::state_is_all},
    {"resume", needs_checkpoints, resume, false, false, Premise::state_is_all, true},
    {"batch", always, batch},
    {"heads", needs_two_heads, heads, false, false, Premise::heads_alike},
    {"neighbour", always, neighbour},
    {"poison", always, poison},
    {"inputs", always, inputs},
    {"parity", parity_inapplicable, run_parity, false, true},
};

}  // namespace

bool Subject::adds_as_in_one_call(const Problem& problem, numeric::DType handed) const {
  return !layout_decides || (problem.initial_state && problem.initial_state->dtype() == handed);
}

std::span<const Invariant> invariants() {
  static const std::vector<Invariant> all = [] {
    std::vector<Invariant> list(std::begin(rows), std::end(rows));
    for (const auto more : {laws_of_life(), laws_of_rings()})
      list.insert(list.end(), more.begin(), more.end());
    return list;
  }();
  return all;
}

}  // namespace kda_check::explain
