// Regimes of the triangular solve: keys alike, beta near or beyond 1, hardly any decay (docs/scenarios.md,
// "Triangular solve").
#include <cmath>

#include "kda/regimes/draft.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::kda::regimes {

namespace {

Problem corr_keys(const Settings& settings) {
  Draft draft(settings);
  draft.k = draft.correlated_rows(settings["rho"]);
  draft.g = draft.gates(Stream::g, constant(settings["g"]));
  draft.beta = draft.betas(constant(settings["beta"]));
  return draft.finish();
}

Problem identical_keys(const Settings& settings) {
  Draft draft(settings);
  std::vector<double> key(draft.K);
  double sum = 1e-6;
  for (std::size_t i = 0; i < draft.K; ++i) {
    key[i] = draft.draw(Stream::direction, {0, 0, 0, i}, 1, draft.K).normal();
    sum += key[i] * key[i];
  }
  for (double& x : key)
    x = static_cast<double>(numeric::through_bf16(static_cast<float>(x / std::sqrt(sum))));
  draft.k = draft.q = draft.keys(Stream::k, [&](const At& at, const Draw&) { return key[at.i]; });
  draft.v = draft.values([&](const At& at, const Draw&) {
    return draft.draw(Stream::v, {at.b, at.t % 16, at.h, at.i}, draft.HV, draft.V).normal();
  });
  draft.g = draft.gates(Stream::g, constant(-5 * sigmoid(-12)));
  draft.beta = draft.betas(constant(sigmoid(8)));
  return draft.finish();
}

/// Bounded gates of which a share p is saturated, as in the layers of Kimi K3: channels, not tokens, so that
/// the others remember and their keys stay alike within a chunk.
Problem saturated_gates(const Settings& settings) {
  Draft draft(settings);
  const double p = settings["p"];
  draft.k = draft.correlated_rows(0.5);
  draft.g = draft.gates(Stream::g, [&](const At& at, const Draw& draw) {
    const At channel{at.b, 0, at.h, at.i};
    const bool saturated = draft.draw(Stream::spike, channel, draft.HV, draft.K).uniform() < p;
    return saturated ? -5 * draw.uniform(0.95, 1) : -0.02 * draw.uniform();
  });
  draft.beta = draft.betas(constant(0.97));
  return draft.finish();
}

Problem zero_keys(const Settings& settings) {
  Draft draft(settings);
  draft.options.qk_l2norm = true;
  const double small = 1e-3 / std::sqrt(static_cast<double>(draft.K));  // the root of epsilon
  draft.k = draft.keys(Stream::k, [&](const At& at, const Draw& draw) {
    if (at.t % 5 == 4) return 0.0;
    return at.t % 5 == 2 ? small * draw.normal() : draw.normal();
  });
  draft.beta = draft.betas(constant(1));
  return draft.finish();
}

Recipe saturated(const char* name, const char* summary, double p) {
  return {name,
          summary,
          "20 21",
          {{"p", "probability of a channel with gates near -5 instead of above -0.02", p, 0, 1}},
          saturated_gates};
}

Recipe correlated(const char* name, const char* summary, const char* source, std::vector<Parameter> sizes,
                  double rho, double beta, double g) {
  sizes.push_back({"rho", "expected cosine of two keys", rho, 0, 1});
  sizes.push_back({"beta", "of every token", beta, 0, 2});
  sizes.push_back({"g", "log decay of every token and channel", g, -1000, 0});
  return {name, summary, source, std::move(sizes), corr_keys};
}

}  // namespace

std::vector<Recipe> solve_recipes() {
  return {
      correlated("corr_keys", "keys alike, beta large, hardly any decay: powers of L grow", "20 22 24",
                 {shared("T", 128), shared("K", 64), shared("V", 64)}, 0.9, 0.9997, -1e-3),
      {"identical_keys",
       "one key for all tokens and heads, and the query",
       "22 23",
       {shared("T", 64)},
       identical_keys},
      correlated("neg_eigval", "beta up to 2: eigenvalues down to -1", "22",
                 {shared("K", 64), shared("V", 64)}, 0.9, 1.99, -1e-3),
      correlated("gate_zero", "no decay at all: the plain delta rule", "47",
                 {shared("K", 64), shared("V", 64)}, 0.5, 0.9, 0),
      saturated("k3_layer0", "every gate saturated, which hides a bad inverse", 1),
      saturated("k3_layer1", "a third of the gates saturated: where Kimi K3 broke", 0.35),
      saturated("k3_slow", "few gates saturated", 0.1),
      {"zero_keys",
       "of five keys one is zero and one as small as epsilon, before the L2 norm",
       "2",
       {},
       zero_keys},
  };
}

}  // namespace kda_check::kda::regimes
