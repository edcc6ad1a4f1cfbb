// KDA's relatives (docs/kda.md, "The family"): one log decay for all K of a head, a beta for each column of
// V, erase and write gates.
#include "kda/regimes/draft.hpp"

namespace kda_check::kda::regimes {

namespace {

/// As FLA's gated_delta_rule takes it: norm, softplus gate with its parameters, sigmoid, all in the kernel.
Problem gdn(const Settings& settings) {
  Draft draft(settings);
  draft.has_scalar_decay = true;
  const bool in_kernel = settings["raw"] > 0;
  if (in_kernel) {
    draft.options.qk_l2norm = draft.options.beta_sigmoid = true;
    draft.options.gate = Gate::softplus;
    draft.q = draft.keys(Stream::q, [](const At&, const Draw& draw) { return draw.normal(); });
    draft.k = draft.keys(Stream::k, [](const At&, const Draw& draw) { return draw.normal(); });
    draft.A_log.emplace(draft.HV), draft.dt_bias.emplace(draft.HV);
    for (std::size_t h = 0; h < draft.HV; ++h) {
      (*draft.A_log)[h] = draft.draw(Stream::bias, {0, 0, 0, h}, 1, 2 * draft.HV).uniform(-2, 2);
      (*draft.dt_bias)[h] =
          draft.draw(Stream::bias, {0, 0, 0, draft.HV + h}, 1, 2 * draft.HV).uniform(-4, -1);
    }
    draft.g = draft.gates(Stream::g, [](const At&, const Draw& draw) { return draw.normal(); });
    draft.beta = draft.betas([](const At&, const Draw& draw) { return draw.normal(); });
  }
  draft.draw_normal_state();
  return draft.finish();
}

Problem column_beta(const Settings& settings) {
  Draft draft(settings);
  draft.strength = Strength::value;
  if (settings["raw"] > 0) {
    draft.options.beta_sigmoid = draft.options.allow_neg_eigval = true;
    draft.beta = draft.betas([](const At&, const Draw& draw) { return draw.normal(); });
  }
  draft.draw_normal_state();
  return draft.finish();
}

/// Erase gates up to 2, as a sigmoid times 2 gives them.
Problem gdn2(const Settings& settings) {
  Draft draft(settings);
  draft.strength = Strength::gates;
  draft.k = draft.correlated_rows(settings["rho"]);
  draft.erase = draft.erase_gates([](const At&, const Draw& draw) { return 2 * sigmoid(draw.normal()); });
  draft.draw_normal_state();
  return draft.finish();
}

}  // namespace

std::vector<Recipe> family_recipes() {
  const Parameter K = shared("K", 64), V = shared("V", 64);
  return {
      {"gdn",
       "one log decay for all K of a head: the gated delta rule",
       "51",
       {shared("T", 130), shared("HV", 4), K, V, flag("raw", "1: norm, gate and sigmoid in the kernel")},
       gdn},
      {"column_beta",
       "a beta for each column of V",
       "51",
       {shared("T", 130), K, V, flag("raw", "1: sigmoid in the kernel, times 2")},
       column_beta},
      {"gdn2",
       "erase and write gates in place of beta",
       "51",
       {shared("T", 130), K, V, {"rho", "cosine of keys", 0.5, 0, 1}},
       gdn2},
  };
}

}  // namespace kda_check::kda::regimes
