// Regimes in which every value of every formulation is exact in every format, so that there is nothing to
// tolerate (docs/scenarios.md, "Exact").
#include "kda/regimes/draft.hpp"

namespace kda_check::kda::regimes {

namespace {

/// A whole number of [-4, 4] times `step`.
Element small_multiple(double step) {
  return [step](const At&, const Draw& draw) { return step * (static_cast<double>(draw.below(9)) - 4); };
}

Problem onehot_exact(const Settings& settings) {
  Draft draft(settings);
  const std::size_t K = draft.K;
  draft.k =
      draft.keys(Stream::k, [K](const At& at, const Draw&) { return at.i == 37 * at.t % K ? 1.0 : 0.0; });
  draft.q = draft.keys(Stream::q,
                       [K](const At& at, const Draw&) { return at.i == (11 * at.t + 5) % K ? 1.0 : 0.0; });
  draft.v = draft.values(small_multiple(16));
  draft.g = draft.gates(Stream::g, constant(0));
  draft.beta = draft.betas([](const At& at, const Draw&) { return at.t % 3 == 0 ? 1.0 : 0.5; });
  draft.initial_state = draft.states(small_multiple(16));
  draft.options.scale = 1;
  return draft.finish();
}

// dyadic_exact: the channels are cut into 8 groups of 4, visited in turn. The eight visits of a group are a
// cycle: four keys of one channel with beta 1, which reset its rows of the state to v, then four keys of two
// channels with beta 1/2, each a projection. Nothing is halved more than three times between two resets, so
// eight bits hold every value; and keys of a group overlap within a chunk, which `onehot_exact` never shows.
constexpr std::size_t dyadic_groups = 8, dyadic_width = 4, dyadic_cycle = 8;
constexpr unsigned dyadic_channels[dyadic_cycle] = {0b0001, 0b0010, 0b0100, 0b1000,
                                                    0b0011, 0b1100, 0b0101, 0b1010};

/// Where a token is in its group's cycle; heads are out of step by three visits.
std::size_t dyadic_visit(const At& at) { return (at.t / dyadic_groups + 3 * at.h) % dyadic_cycle; }

double sign(const Draw& draw) { return draw.below(2) == 0 ? 1 : -1; }

Problem dyadic_exact(const Settings& settings) {
  Draft draft(settings);
  const std::size_t per_key_head = draft.HV / draft.H;
  draft.k = draft.keys(Stream::k, [](const At& at, const Draw& draw) {
    const bool in_group = at.i / dyadic_width == at.t % dyadic_groups;
    const bool chosen = (dyadic_channels[dyadic_visit(at)] >> (at.i % dyadic_width) & 1u) != 0;
    return in_group && chosen ? sign(draw) : 0.0;
  });
  draft.q = draft.keys(Stream::q,
                       [](const At&, const Draw& draw) { return draw.below(4) == 0 ? sign(draw) : 0.0; });
  draft.v = draft.values(small_multiple(1));
  draft.g = draft.gates(Stream::g, constant(0));
  draft.beta = draft.betas([per_key_head](const At& at, const Draw&) {
    return dyadic_visit({at.b, at.t, at.h / per_key_head, 0}) < 4 ? 1.0 : 0.5;
  });
  draft.initial_state = draft.states(small_multiple(1));
  draft.options.scale = 0.5;
  return draft.finish();
}

}  // namespace

std::vector<Recipe> exact_recipes() {
  return {
      {"onehot_exact",
       "one-hot keys and queries, no decay: no bit may differ, in any format or formulation",
       "19 27 51",
       {fixed("K", 64), shared("V", 64)},
       onehot_exact},
      {"dyadic_exact",
       "overlapping keys with dyadic values, no decay: no bit may differ either",
       "19 27 51",
       {{"K", "key width", 64, 32, 128, true}, shared("V", 64)},
       dyadic_exact},
  };
}

}  // namespace kda_check::kda::regimes
