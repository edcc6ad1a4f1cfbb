// Regimes of the gate functions (docs/scenarios.md, "Decay"): values as real layers have them. With raw=1 the
// gate is left to the kernel: g holds its argument, A_log and dt_bias its parameters.
#include <cmath>

#include "kda/regimes/draft.hpp"
#include "numeric/double_double_functions.hpp"
#include "numeric/elementary.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::kda::regimes {

namespace {

/// exp(A_log) of a head: A, or 1, 4 and 15 in turn when it is 0.
std::vector<double> slopes(const Draft& draft, double A) {
  constexpr double measured[] = {1, 4, 15};
  std::vector<double> list(draft.HV, A);
  for (std::size_t h = 0; A <= 0 && h < draft.HV; ++h) list[h] = measured[h % 3];
  return list;
}

std::vector<double> logs(std::vector<double> values) {
  for (double& value : values) value = numeric::log(value);
  return values;
}

/// The gate `function` of slope and argument + bias, evaluated here or, with `raw`, left to the kernel.
/// `bias` is empty or [HV K].
struct GateRecipe {
  Gate gate;
  std::vector<double> slope, bias;
  bool raw;
  double bound = usual_lower_bound;
};

void set_gate(Draft& draft, const GateRecipe& recipe, const Element& argument) {
  if (recipe.raw) {
    draft.options.gate = recipe.gate;
    if (recipe.gate == Gate::lower_bound) draft.options.lower_bound = recipe.bound;
    draft.A_log = logs(recipe.slope);
    if (!recipe.bias.empty()) draft.dt_bias = recipe.bias;
    draft.g = draft.gates(Stream::g, argument);
    return;
  }
  draft.g = draft.gates(Stream::g, [&](const At& at, const Draw& draw) {
    const double bias = recipe.bias.empty() ? 0 : recipe.bias[at.h * draft.K + at.i];
    const double x = argument(at, draw) + bias, slope = recipe.slope[at.h];
    return recipe.gate == Gate::softplus ? -slope * softplus(x) : recipe.bound * sigmoid(slope * x);
  });
}

double normal(const At&, const Draw& draw) { return draw.normal(); }

/// softplus^-1 of steps between 1e-3 and 0.1, as Mamba initialises them.
std::vector<double> mamba_bias(const Draft& draft) {
  std::vector<double> bias(draft.HV * draft.K);
  for (std::size_t i = 0; i < bias.size(); ++i) {
    const Draw draw = draft.draw(Stream::bias, {0, 0, 0, i}, 1, bias.size());
    const double step = numeric::exp(draw.uniform(numeric::log(1e-3), numeric::log(0.1)));
    const numeric::DoubleDouble rest = numeric::exp(numeric::DoubleDouble{-step}) + (-1.0);
    bias[i] = step + numeric::log(-rest.hi);
  }
  return bias;
}

void strong_beta(Draft& draft) {
  draft.beta = draft.betas([](const At&, const Draw& draw) { return sigmoid(draw.normal() + 1); });
}

Problem lb_real(const Settings& settings) {
  Draft draft(settings);
  draft.k = draft.correlated_rows(0.5);
  set_gate(draft,
           {Gate::lower_bound, slopes(draft, settings["A"]), {}, settings["raw"] > 0, -settings["bound"]},
           normal);
  strong_beta(draft);
  draft.initial_state = draft.states([](const At&, const Draw& draw) { return 0.1 * draw.normal(); });
  return draft.finish();
}

Problem unbounded_softplus(const Settings& settings) {
  Draft draft(settings);
  draft.k = draft.correlated_rows(0.5);
  const std::vector<double> slope(draft.HV, settings["A"]);
  set_gate(draft, {Gate::softplus, slope, mamba_bias(draft), settings["raw"] > 0},
           [&](const At& at, const Draw& draw) {
             const Draw jump = draft.draw(Stream::spike, {at.b, at.t, 0, 0}, 1, 1);
             return draw.normal() + (jump.uniform() < 0.02 ? 20 : 0);
           });
  return draft.finish();
}

Problem softplus_knee(const Settings& settings) {
  Draft draft(settings);
  std::vector<double> bias(draft.HV * draft.K);
  for (std::size_t i = 0; i < bias.size(); ++i)
    bias[i] = draft.draw(Stream::bias, {0, 0, 0, i}, 1, bias.size()).normal();
  set_gate(draft, {Gate::softplus, std::vector<double>(draft.HV, settings["A"]), std::move(bias), true},
           normal);
  return draft.finish();
}

Problem alog_extreme(const Settings& settings) {
  Draft draft(settings);
  draft.options.gate = Gate::softplus;
  draft.A_log = std::vector<double>(draft.HV, settings["A_log"]);
  draft.g = draft.gates(Stream::g, constant(settings["x"]));
  return draft.finish();
}

Problem v_outlier(const Settings& settings) {
  Draft draft(settings);
  draft.k = draft.correlated_rows(0.5);
  draft.v = draft.values([&](const At& at, const Draw& draw) {
    const bool outlier = draft.draw(Stream::outlier, at, draft.HV, draft.V).uniform() < settings["p"];
    return outlier ? 24.78 : draw.uniform(-0.3, 5);
  });
  set_gate(draft, {Gate::lower_bound, slopes(draft, 4), {}, false}, normal);
  strong_beta(draft);
  return draft.finish();
}

Problem bf16_params(const Settings& settings) {
  Draft draft(settings);
  draft.k = draft.correlated_rows(0.5);
  std::vector<double> bias(draft.HV * draft.K);
  for (std::size_t i = 0; i < bias.size(); ++i)
    bias[i] = draft.draw(Stream::bias, {0, 0, 0, i}, 1, bias.size()).normal();
  set_gate(draft, {Gate::lower_bound, slopes(draft, settings["A"]), bias, true}, normal);
  strong_beta(draft);
  if (settings["rounded"] > 0)
    for (std::vector<double>* const parameter : {&*draft.A_log, &*draft.dt_bias})
      for (double& value : *parameter)
        value = static_cast<double>(numeric::through_bf16(static_cast<float>(value)));
  return draft.finish();
}

const char raw_summary[] = "1: the kernel evaluates the gate";

}  // namespace

std::vector<Recipe> gate_recipes() {
  const Parameter slope{"A", "slope exp(A_log); 0: 1, 4 and 15 in turn over the heads", 0, 0, 1000};
  return {
      {"lb_real",
       "bounded gates as trained layers have them, with an initial state",
       "3 4 7",
       {shared("H", 3),
        slope,
        flag("raw", raw_summary),
        {"bound", "lower_bound is the opposite", 5, 0.01, 1000}},
       lb_real},
      {"unbounded_softplus",
       "unbounded gates, 2 % of the tokens far out",
       "6 14",
       {{"A", "slope exp(A_log)", 16, 0, 1000}, flag("raw", raw_summary)},
       unbounded_softplus},
      {"softplus_knee",
       "arguments where softplus is like neither of its ends, nor like its derivative",
       "14",
       {{"A", "slope exp(A_log)", 0.1, 0, 1000}},
       softplus_knee},
      {"alog_extreme",
       "a gate that is tiny, though its factors overflow and underflow",
       "15",
       {shared("T", 64),
        {"A_log", "log of the slope", 100, -700, 700},
        {"x", "argument of the softplus", -200, -700, 700}},
       alog_extreme},
      {"v_outlier",
       "values of one sign with outliers, as measured",
       "18",
       {{"p", "share of 24.78 among values uniform in [-0.3, 5]", 0.01, 0, 1}},
       v_outlier},
      {"bf16_params",
       "gate parameters in fp32, or as a cast to bf16 leaves them: two problems that must differ",
       "50",
       {shared("H", 3), slope, flag("rounded", "1: A_log and dt_bias rounded to bf16")},
       bf16_params},
  };
}

}  // namespace kda_check::kda::regimes
