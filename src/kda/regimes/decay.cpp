// Regimes of the decay: how far exponents reach (docs/scenarios.md, "Decay"). Gates are given directly.
#include <cmath>
#include <numbers>

#include "kda/regimes/draft.hpp"

namespace kda_check::kda::regimes {

namespace {

Problem control(const Settings& settings) { return Draft(settings).finish(); }

Problem lb_const_sweep(const Settings& settings) {
  Draft draft(settings);
  draft.g = draft.gates(Stream::g, constant(settings["g"]));
  draft.beta = draft.betas(constant(0.5));
  return draft.finish();
}

Problem sparse_spikes(const Settings& settings) {
  Draft draft(settings);
  const double p = settings["p"];
  draft.k = draft.correlated_rows(0.5);
  draft.g = draft.gates(Stream::spike,
                        [p](const At&, const Draw& draw) { return draw.uniform() < p ? -5.0 : -1e-3; });
  draft.beta = draft.betas(constant(0.9));
  return draft.finish();
}

Problem mixed_channels(const Settings& settings) {
  Draft draft(settings);
  draft.g = draft.gates(Stream::g, [](const At& at, const Draw&) { return at.i % 2 == 1 ? -5.0 : -1e-4; });
  return draft.finish();
}

Problem ramp_clamp(const Settings& settings) {
  Draft draft(settings);
  draft.g = draft.gates(Stream::g, constant(-settings["drop"] * std::numbers::ln2));
  return draft.finish();
}

Problem spike_then_slow(const Settings& settings) {
  Draft draft(settings);
  const double s = settings["s"];
  draft.k = draft.correlated_rows(0.5);
  draft.g = draft.gates(Stream::g, [s](const At& at, const Draw&) { return at.t % 64 == 0 ? s : -0.01; });
  draft.beta = draft.betas(constant(0.5));
  return draft.finish();
}

Problem ftz_window(const Settings& settings) {
  Draft draft(settings);
  draft.k = draft.correlated_rows(0.5);
  draft.g = draft.gates(Stream::g, constant(settings["g"]));
  draft.beta = draft.betas(constant(0.9));
  return draft.finish();
}

Problem mask_m1000(const Settings& settings) {
  Draft draft(settings);
  draft.k = draft.correlated_rows(0.5);
  draft.g = draft.gates(Stream::g, [&](const At& at, const Draw& draw) {
    const Draw masked = draft.draw(Stream::spike, {at.b, at.t, at.h, 0}, draft.HV, 1);
    return masked.uniform() < settings["p"] ? -1000.0 : log_sigmoid(draw.normal());
  });
  return draft.finish();
}

}  // namespace

std::vector<Recipe> decay_recipes() {
  return {
      {"control", "nothing special: what most tests use, and on which nothing fails", "58", {}, control},
      {"lb_const_sweep",
       "the same gate everywhere; shows where each factored form overflows",
       "3 4 7",
       {shared("T", 128), {"g", "log decay of every token and channel", -5, -1000, 0}},
       lb_const_sweep},
      {"sparse_spikes",
       "-5 here and there, hardly any decay elsewhere",
       "8",
       {{"p", "probability of -5 instead of -1e-3", 0.3, 0, 1}},
       sparse_spikes},
      {"mixed_channels",
       "odd channels forget at once (-5), even ones hardly (-1e-4)",
       "10",
       {},
       mixed_channels},
      {"ramp_clamp",
       "a decay by 2^-drop at every token: clamped exponents read forgotten keys",
       "9",
       {shared("T", 64), shared("H", 4), {"drop", "powers of two lost at every token", 9, 0, 1000}},
       ramp_clamp},
      {"spike_then_slow",
       "each 64th token forgets strongly, the rest slowly: large sums, small differences",
       "16",
       {{"s", "log decay of tokens 0, 64, 128, ...", -100, -1000, 0}},
       spike_then_slow},
      {"ftz_window",
       "a gate at which a flushed exponential is silently wrong",
       "4",
       {shared("T", 64), {"g", "log decay of every token and channel", -2.75, -1000, 0}},
       ftz_window},
      {"mask_m1000",
       "some tokens wipe the state: -1000 in all channels",
       "14",
       {{"p", "probability that a token of a head wipes", 0.1, 0, 1}},
       mask_m1000},
  };
}

}  // namespace kda_check::kda::regimes
