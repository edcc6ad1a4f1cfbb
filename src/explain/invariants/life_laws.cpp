// The laws of the life of a state: however requests are served, each is answered as if it were alone.
#include <fmt/format.h>

#include <algorithm>

#include "explain/invariants/serving.hpp"

namespace kda_check::explain {

namespace {

using kda::Problem;
using kda::Tensors;
using Sink = std::function<void(Trial)>;

std::string forwards(const Problem& problem, kda::Pass pass) {
  if (problem.pool && !problem.pool->ring.empty())
    return "the call is one behind rings: wrap, rollback, flush";
  if (problem.pool && (!problem.pool->table.outputs.empty() || problem.pool->source))
    return "the call stores its states elsewhere than it reads them";
  return pass == kda::Pass::forward ? "" : "a state in a pool has no gradient";
}
std::string forwards_with_two_tokens(const Problem& problem, kda::Pass pass) {
  if (problem.pool && numeric::format_of(problem.pool->states.dtype()).bytes == 2)
    return "states of 16 bits between calls: who is served in several is answered otherwise";
  for (const kda::Sequence& sequence : problem.sequences())
    if (sequence.length() > 1) return forwards(problem, pass);
  return "no sequence has two tokens";
}

/// On a call the kernel of which may know no other: its kind of padding, drafts where it counts them.
std::string forwards_with_drafts(const Problem& problem, kda::Pass pass) {
  if (problem.pool && problem.pool->table.accepted.empty()) return "the call has no num_accepted_tokens";
  return forwards_with_two_tokens(problem, pass);
}
std::string forwards_with_padding(const Problem& problem, kda::Pass pass) {
  if (problem.pool && problem.pool->table.padding == kda::PaddingSlots::none)
    return "the call has no padding";
  return forwards(problem, pass);
}

bool has_empty_rows(const kda::PoolCall& call) {
  const std::vector<kda::Sequence> sequences = call.problem.sequences();
  return std::ranges::any_of(sequences, [](const kda::Sequence& one) { return one.length() == 0; });
}

struct Serving {
  std::string what;
  Service service;
};

/// What each request is to be answered: by who takes calls on pools alone in one such call.
Tensors answered_alone(const Problem& problem, const Problem& requests, const Tensors& reference,
                       const Subject& subject) {
  if (!problem.pool) return solved(subject, requests);
  Served at_once = served(requests, reference, subject, {.flags = !problem.pool->table.has_state.empty()});
  Tensors answer;
  answer.emplace("o", std::move(at_once.o));
  answer.emplace("final_state", std::move(at_once.final_state));
  return answer;
}

void serve(const Problem& problem, const Tensors& reference, const Subject& subject,
           const std::vector<Serving>& servings, const Sink& sink) {
  const Problem requests = as_requests(problem, reference.at("final_state").dtype());
  const Tensors expected = answered_alone(problem, requests, reference, subject);
  for (Serving serving : servings) {
    const kda::PaddingSlots padding = serving.service.padding;
    bool &flags = serving.service.flags, &new_rows = serving.service.new_rows;
    flags = problem.pool ? !problem.pool->table.has_state.empty() : new_rows;
    new_rows = new_rows && flags;
    if (problem.pool && padding != kda::PaddingSlots::none && padding != problem.pool->table.padding)
      continue;
    Served got = served(requests, expected, subject, serving.service);
    const bool same_calls = serving.service.generated() == 0 && !serving.service.in_parts;
    if (serving.service.drafted > 0)
      serving.what += fmt::format(", {} of a token behind 2 or more accepted", got.single_steps);
    Trial trial{serving.what, same_calls || subject.form == judge::Form::recurrence, {}};
    trial.pairs.push_back({"o", std::move(got.o), expected.at("o").clone()});
    trial.pairs.push_back({"final_state", std::move(got.final_state), expected.at("final_state").clone()});
    sink(std::move(trial));
    if (got.changed_slots)
      sink({serving.what + ": slots left alone", true, [&] {
              std::vector<Pair> pairs;
              pairs.push_back({"state_pool", std::move(*got.changed_slots), std::move(*got.kept_slots)});
              return pairs;
            }()});
  }
}

void decode(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  serve(problem, reference, subject, {{"the last 16 tokens one by one", {.decoded = 16}}}, sink);
}

void prefill(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  std::vector<Serving> servings;
  for (const std::uint64_t seed : {1u, 2u})
    servings.push_back({fmt::format("in parts, seed {}", seed), {.seed = seed, .in_parts = true}});
  serve(problem, reference, subject, servings, sink);
}

void drafts(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  std::vector<Serving> servings;
  for (const std::uint64_t seed : {1u, 2u})
    servings.push_back(
        {fmt::format("drafts, some rolled back, seed {}", seed), {.seed = seed, .drafted = 16}});
  serve(problem, reference, subject, servings, sink);
}

void prefix(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  serve(problem, reference, subject, {{"from the state of a prefix, twice", {.prefix_hit = true}}}, sink);
}

void slots(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  serve(problem, reference, subject, {{"slots in no order", {.other_slots = true, .new_rows = true}}}, sink);
}

void padding(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  std::vector<Serving> servings{{"rows of slot -1 between", {.padding = kda::PaddingSlots::negative}},
                                {"rows of slot 0 between", {.padding = kda::PaddingSlots::nonpositive}}};
  if (problem.pool && problem.pool->table.padding == kda::PaddingSlots::negative_tokens)
    servings.front().service.padding = kda::PaddingSlots::negative_tokens;
  serve(problem, reference, subject, servings, sink);
}

void arrival(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  serve(problem, reference, subject, {{"two at a time, the last first", {.in_any_order = true}}}, sink);
}

void server(const Problem& problem, const Tensors& reference, const Subject& subject, const Sink& sink) {
  std::vector<Serving> servings;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    Service service = Service::whole(seed);
    if (problem.pool) service.padding = problem.pool->table.padding;
    if (problem.pool) service.empty_rows = has_empty_rows(*problem.pool);
    if (problem.pool && problem.pool->table.accepted.empty())
      service.decoded = service.generated(), service.drafted = 0;
    servings.push_back({fmt::format("a server, seed {}", seed), service});
  }
  serve(problem, reference, subject, servings, sink);
}

constexpr Invariant life_rows[] = {
    {"decode", forwards_with_two_tokens, decode, true, false, Premise::state_is_all},
    {"prefill", forwards_with_two_tokens, prefill, true, false, Premise::state_is_all},
    {"drafts", forwards_with_drafts, drafts, true, false, Premise::state_is_all},
    {"prefix", forwards_with_drafts, prefix, true, false, Premise::state_is_all},
    {"slots", forwards, slots, true},
    {"padding", forwards_with_padding, padding, true},
    {"arrival", forwards, arrival, true},
    {"server", forwards_with_two_tokens, server, true, false, Premise::state_is_all},
};

}  // namespace

std::span<const Invariant> laws_of_life() { return life_rows; }

}  // namespace kda_check::explain
