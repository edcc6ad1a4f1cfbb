#include "explain/invariants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "explain/rearrangement.hpp"

namespace kda_check::explain {

namespace {

using kda::Answer;
using kda::Problem;
using Sink = std::function<void(Trial)>;

std::vector<Pair> both(Answer got) {
  std::vector<Pair> pairs;
  pairs.push_back({"o", std::move(got.o), {}});
  pairs.push_back({"final_state", std::move(got.final_state), {}});
  return pairs;
}

std::vector<Pair> output_only(Answer got) {
  std::vector<Pair> pairs;
  pairs.push_back({"o", std::move(got.o), {}});
  return pairs;
}

std::vector<Pair> both_of(Answer got, Answer expected) {
  std::vector<Pair> pairs;
  pairs.push_back({"o", std::move(got.o), std::move(expected.o)});
  pairs.push_back({"final_state", std::move(got.final_state), std::move(expected.final_state)});
  return pairs;
}

std::size_t longest_sequence(const Problem& problem) {
  std::size_t longest = 0;
  for (const kda::Sequence& sequence : problem.sequences()) longest = std::max(longest, sequence.length());
  return longest;
}

std::string always(const Problem&) { return {}; }
std::string needs_two_tokens(const Problem& problem) {
  return longest_sequence(problem) > 1 ? "" : "no sequence has two tokens";
}
std::string needs_two_heads(const Problem& problem) {
  return problem.dimensions().HV > 1 ? "" : "there is one head";
}

// --- repeat

void repeat(const Problem& problem, const Answer&, const Subject& subject, const Sink& sink) {
  for (const char* const what : {"second run", "third run"})
    sink({what, true, both(subject.solve(problem, Fill::whatever))});
}

// --- causality

/// The first `cut` tokens of every sequence longer than that.
std::vector<kda::Sequence> prefixes(const Problem& problem, std::size_t cut) {
  std::vector<kda::Sequence> pieces;
  for (const kda::Sequence& sequence : problem.sequences())
    if (sequence.length() > cut) pieces.push_back(sequence.part(0, cut));
  return pieces;
}

/// The first `cut` tokens of every sequence, from one output to another.
void copy_tokens(const tensor::Tensor& from, std::size_t cut, const Problem& problem, tensor::Tensor& to) {
  const tensor::Tensor o = from.converted_to(to.dtype());
  const std::size_t T = problem.dimensions().T, row = o.bytes() / (problem.dimensions().B * T);
  for (const kda::Sequence& sequence : problem.sequences()) {
    const std::size_t first = (sequence.batch * T + sequence.begin) * row;
    std::copy_n(o.data() + first, std::min(cut, sequence.length()) * row, to.data() + first);
  }
}

void causality(const Problem& problem, const Answer& reference, const Subject& subject, const Sink& sink) {
  const std::size_t longest = longest_sequence(problem), C = subject.chunk_size;
  std::vector<std::size_t> cuts{longest - 1, longest * 5 / 8, std::min(C, longest - 1)};
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (const std::size_t cut : cuts) {
    if (cut == 0) continue;
    const bool same_bits = !subject.reads_ahead || cut % C == 0;
    const std::vector<kda::Sequence> pieces = prefixes(problem, cut);
    Answer got = clone(reference);
    put_back(subject.solve(excerpt(problem, pieces, layout_of(problem)), Fill::whatever), pieces, problem,
             got);
    sink({fmt::format("tokens from {} on left out", cut), same_bits, output_only(std::move(got))});

    Problem changed = kda::clone(problem);
    for (const kda::Sequence& sequence : problem.sequences())
      replace_tokens(changed, sequence.index, std::min(cut, sequence.length()), sequence.length());
    Answer kept = clone(reference);
    copy_tokens(subject.solve(changed, Fill::whatever).o, cut, problem, kept.o);
    sink({fmt::format("tokens from {} on replaced", cut), same_bits, output_only(std::move(kept))});
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

void split(const Problem& problem, const Answer& reference, const Subject& subject, const Sink& sink) {
  for (const std::size_t cut : cuts_of(longest_sequence(problem), subject.chunk_size)) {
    std::vector<kda::Sequence> first, second;
    for (const kda::Sequence& sequence : problem.sequences()) {
      first.push_back(sequence.part(0, std::min(cut, sequence.length())));
      if (sequence.length() > cut) second.push_back(sequence.part(cut, sequence.length()));
    }
    Answer got = clone(reference);
    put_back(subject.solve(excerpt(problem, first, layout_of(problem)), Fill::whatever), first, problem, got);
    const Problem rest = excerpt(problem, second, layout_of(problem), &got.final_state);
    put_back(subject.solve(rest, Fill::whatever), second, problem, got);
    const bool same_bits = subject.form == judge::Form::recurrence || cut % subject.chunk_size == 0;
    sink({fmt::format("cut at {}", cut), same_bits, both(std::move(got))});
  }
}

// --- batch and heads

/// Every second of the sequences that `pieces` were put together from, beginning with the second: their
/// answers in the places of the whole.
Answer every_second(const Answer& answer, const std::vector<kda::Sequence>& pieces, const Problem& whole,
                    const Answer& reference) {
  const kda::Dimensions& d = whole.dimensions();
  const std::size_t row = d.HV * d.V * numeric::format_of(answer.o.dtype()).bytes;
  const std::size_t state = d.HV * d.K * d.V * numeric::format_of(answer.final_state.dtype()).bytes;
  std::vector<kda::Sequence> wanted;
  std::vector<std::byte> rows, states;
  std::size_t begin = 0;
  for (std::size_t n = 0; n < pieces.size(); ++n) {
    const std::size_t end = begin + pieces[n].length();
    if (n % 2 == 1) {
      wanted.push_back(pieces[n]);
      rows.insert(rows.end(), answer.o.data() + begin * row, answer.o.data() + end * row);
      states.insert(states.end(), answer.final_state.data() + n * state,
                    answer.final_state.data() + (n + 1) * state);
    }
    begin = end;
  }
  Answer part{tensor::Tensor("o", answer.o.dtype(), {1, rows.size() / row, d.HV, d.V}),
              tensor::Tensor("final_state", answer.final_state.dtype(), {wanted.size(), d.HV, d.K, d.V})};
  std::copy(rows.begin(), rows.end(), part.o.data());
  std::copy(states.begin(), states.end(), part.final_state.data());
  Answer placed = clone(reference);
  put_back(part, wanted, whole, placed);
  return placed;
}

void batch(const Problem& problem, const Answer& reference, const Subject& subject, const Sink& sink) {
  const std::vector<kda::Sequence> sequences = problem.sequences();
  std::vector<kda::Sequence> pieces;
  for (std::size_t n = sequences.size(); n-- > 0;) pieces.push_back(sequences[n]);
  if (pieces.size() > 1) {
    Answer got = clone(reference);
    put_back(subject.solve(excerpt(problem, pieces, layout_of(problem)), Fill::whatever), pieces, problem,
             got);
    sink({"sequences in reverse order", true, both(std::move(got))});
    return;
  }
  pieces.push_back(pieces.front());  // it, behind another as long
  Problem two = excerpt(problem, pieces, layout_of(problem));
  replace_tokens(two, 0, 0, sequences.front().length());
  sink({"behind another sequence", true,
        both(every_second(subject.solve(two, Fill::whatever), pieces, problem, reference))});
}

void heads(const Problem& problem, const Answer&, const Subject& subject, const Sink& sink) {
  Answer answer = subject.solve(with_heads_reversed(problem), Fill::whatever);
  sink({"heads in reverse order", true, both(with_heads_reversed(answer))});
}

// --- neighbour

/// The sequences packed, each between two neighbours that end within a chunk: finite ones, then NaN.
void neighbour(const Problem& problem, const Answer& reference, const Subject& subject, const Sink& sink) {
  std::vector<kda::Sequence> pieces;
  for (const kda::Sequence& sequence : problem.sequences()) {
    if (sequence.length() == 0) continue;
    const kda::Sequence short_one = sequence.part(0, std::min(sequence.length(), subject.chunk_size / 2 + 1));
    if (pieces.empty()) pieces.push_back(short_one);
    pieces.push_back(sequence);
    pieces.push_back(short_one);
  }
  Problem packed = excerpt(problem, pieces, Layout::packed);
  Answer expected = every_second(subject.solve(packed, Fill::whatever), pieces, problem, reference);
  for (std::size_t n = 0; n < pieces.size(); n += 2) make_nan(packed, n);
  Answer got = every_second(subject.solve(packed, Fill::whatever), pieces, problem, reference);
  sink({"NaN before and behind", true, both_of(std::move(got), std::move(expected))});
}

// --- memory

void poison(const Problem& problem, const Answer&, const Subject& subject, const Sink& sink) {
  sink({"memory full of NaN", true, both(subject.solve(problem, Fill::nan))});
  sink({"memory full of large numbers", true, both(subject.solve(problem, Fill::huge))});
}

void inputs(const Problem& problem, const Answer&, const Subject& subject, const Sink& sink) {
  Problem after = subject.inputs_after(problem);
  Trial trial{"inputs afterwards", true, {}};
  const auto add = [&](tensor::Tensor& got, const tensor::Tensor& before) {
    trial.pairs.push_back({before.name(), std::move(got), before.clone()});
  };
  add(after.q, problem.q), add(after.k, problem.k), add(after.v, problem.v), add(after.g, problem.g);
  add(after.beta, problem.beta);
  if (problem.A_log && after.A_log) add(*after.A_log, *problem.A_log);
  if (problem.dt_bias && after.dt_bias) add(*after.dt_bias, *problem.dt_bias);
  if (problem.initial_state && after.initial_state) add(*after.initial_state, *problem.initial_state);
  sink(std::move(trial));
}

constexpr Invariant rows[] = {
    {"repeat", "run again: the same bits", "races, memory left over from the run before", always, repeat},
    {"causality", "tokens from t on replaced, or left out: no bit of o before t changes",
     "masks off by one, gates of later tokens, anchors in later rows", needs_two_tokens, causality},
    {"split",
     "cut in two, the state handed over: the same bits (chunk forms: at the ends of chunks, else within the "
     "limits)",
     "state dropped or rounded on the way, gates off by one at a start", needs_two_tokens, split},
    {"batch", "sequences in reverse order, or behind another: the same bits for each",
     "indices of rows and states, work shared between rows", always, batch},
    {"heads", "heads in reverse order: the same bits for each",
     "indices of heads, parameters of another head", needs_two_heads, heads},
    {"neighbour", "packed between sequences of NaN: the same bits as between finite ones",
     "reads beyond the end of a sequence, masks by multiplication", always, neighbour},
    {"poison", "outputs and scratch memory full of NaN, then of large numbers: the same bits",
     "elements never written, memory read before it is", always, poison},
    {"inputs", "the inputs afterwards: the same bits as before", "work in place", always, inputs},
};

}  // namespace

std::span<const Invariant> invariants() { return rows; }

}  // namespace kda_check::explain
