// Regimes of structure: causality, cuts, tails, layouts, packing, groups (docs/scenarios.md,
// "Structure"). What must be equal bit for bit is checked by tests/kda/regimes/regime_laws.cpp; as targets
// they are problems like any other.
#include <algorithm>
#include <iterator>
#include <limits>

#include "kda/regimes/draft.hpp"
#include "kda/truth/oracle.hpp"
#include "kda/truth/places.hpp"

namespace kda_check::kda::regimes {

namespace {

void bounded_gates(Draft& draft) {
  draft.g = draft.gates(Stream::g, [](const At&, const Draw& draw) { return -5 * sigmoid(draw.normal()); });
}

Problem prefix_causality(const Settings& settings) {
  Draft draft(settings);
  bounded_gates(draft);
  draft.beta = draft.betas(constant(1));
  if (settings["perturbed"] < 1) return draft.finish();
  draft.fill_defaults();
  const std::size_t last = draft.T - 1;
  const auto perturb = [&](std::vector<double>& rows, std::size_t heads, std::size_t width, double factor) {
    for (std::size_t b = 0; b < draft.B; ++b)
      for (std::size_t i = 0; i < heads * width; ++i) {
        const Draw draw = draft.draw(Stream::perturbation, {b, 0, 0, i}, 1, heads * width);
        rows[(b * draft.T + last) * heads * width + i] = factor * draw.normal();
      }
  };
  perturb(draft.k, draft.H, draft.K, 0.1);
  perturb(draft.v, draft.HV, draft.V, 1);
  for (std::size_t b = 0; b < draft.B; ++b)
    for (std::size_t i = 0; i < draft.HV * draft.K; ++i)
      draft.g[(b * draft.T + last) * draft.HV * draft.K + i] = -1e-3;
  return draft.finish();
}

/// The state after the problem, as [N,HV,K,V] in fp64.
std::vector<double> true_state(const Problem& problem) {
  const Dimensions& d = problem.dimensions();
  std::vector<double> states(d.N * d.HV * d.K * d.V);
  const auto keep = [&](const OraclePart& part) { std::copy_n(part.hi, part.count, &states[part.first]); };
  run_oracle(problem, OraclePrecision::double_double, 1, by_places(d, {}, keep));
  return states;
}

/// With a cut: the tokens from it on, from the true state before them. The beginning of a problem is the
/// shorter problem, so that state is the answer to the same settings with T = cut.
Problem split_invariance(const Settings& settings) {
  const std::size_t cut = settings.count("cut");
  if (cut == 0) return Draft(settings).finish();
  Settings of_beginning = settings;
  of_beginning.find("cut")->value = 0;
  Settings of_all = of_beginning;
  of_beginning.find("T")->value = static_cast<double>(cut);
  of_all.find("T")->value += static_cast<double>(cut);
  Draft draft(of_all);
  draft.initial_state = true_state(split_invariance(of_beginning));
  draft.keep_state = true;
  draft.drop_tokens(cut);
  return draft.finish();
}

Problem tails(const Settings& settings) {
  Draft draft(settings);
  bounded_gates(draft);
  draft.draw_normal_state();
  return draft.finish();
}

Problem layout_asym(const Settings& settings) {
  Draft draft(settings);
  draft.options.state_v_first = settings["v_first"] > 0;
  draft.g = draft.gates(Stream::g, constant(-0.05));
  draft.draw_normal_state();
  return draft.finish();
}

/// Sequences of 1, 64, 0, 65, 130 and 1 tokens, again and again until T is reached.
Problem varlen(const Settings& settings) {
  constexpr std::int64_t lengths[] = {1, 64, 0, 65, 130, 1};
  constexpr std::size_t poisoned = 3;
  Draft draft(settings);
  const auto T = static_cast<std::int64_t>(draft.T);
  draft.cu_seqlens = {0};
  for (std::size_t n = 0; draft.cu_seqlens.back() < T; ++n)
    draft.cu_seqlens.push_back(std::min(T, draft.cu_seqlens.back() + lengths[n % std::size(lengths)]));
  draft.N = draft.cu_seqlens.size() - 1;
  bounded_gates(draft);
  draft.draw_normal_state();
  draft.fill_defaults();
  if (settings["poison"] > 0 && draft.N > poisoned) {
    const auto begin = static_cast<std::size_t>(draft.cu_seqlens[poisoned]);
    const auto end = static_cast<std::size_t>(draft.cu_seqlens[poisoned + 1]);
    for (std::vector<double>* const tensor : {&draft.q, &draft.k, &draft.v, &draft.g, &draft.beta}) {
      const std::size_t row = tensor->size() / draft.T;
      std::fill(&(*tensor)[begin * row], tensor->data() + end * row,
                std::numeric_limits<double>::quiet_NaN());
    }
  }
  return draft.finish();
}

Problem gva(const Settings& settings) {
  Draft draft(settings);
  bounded_gates(draft);
  draft.draw_normal_state();
  return draft.finish();
}

}  // namespace

std::vector<Recipe> structure_recipes() {
  return {
      {"prefix_causality",
       "a short problem whose last token may be another: nothing before it may change",
       "5 25",
       {shared("T", 22), shared("H", 4), flag("perturbed", "1: the last token has other k, v and g")},
       prefix_causality},
      {"split_invariance",
       "a problem cut in two: the second part, from the true state of the first",
       "29 30 49",
       {shared("T", 92),
        shared("K", 64),
        shared("V", 64),
        {"cut", "tokens before the part that is run; 0: run from the start", 100, 0, 1 << 20, true}},
       split_invariance},
      {"tails", "a length that is no multiple of a chunk or a tile", "33 51", {shared("T", 65)}, tails},
      {"layout_asym",
       "a large initial state that is not symmetric, and few tokens to forget it",
       "27 28",
       {shared("T", 8), shared("V", 64), flag("v_first", "1: states are [V,K]")},
       layout_asym},
      {"varlen",
       "packed sequences of 1, 64, 0, 65, 130 and 1 tokens",
       "32 33",
       {fixed("B", 1), shared("T", 261), shared("K", 64), shared("V", 64),
        flag("poison", "1: the sequence of 65 tokens is all NaN")},
       varlen},
      {"gva",
       "four value heads to a query head",
       "51",
       {shared("HV", 8), shared("K", 64), shared("V", 64)},
       gva},
  };
}

}  // namespace kda_check::kda::regimes
