// Regimes of the backward pass (docs/scenarios.md, "Backward"): the loss is given with them.
#include <cmath>

#include "kda/regimes/draft.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::kda::regimes {

namespace {

/// exp(A_log) over the heads, as trained layers have it.
double slope_of(std::size_t head) {
  constexpr double measured[] = {1, 4, 15};
  return measured[head % 3];
}

void gate_in_kernel(Draft& draft) {
  draft.options.gate = Gate::lower_bound;
  draft.options.lower_bound = usual_lower_bound;
  draft.A_log.emplace(draft.HV);
  for (std::size_t h = 0; h < draft.HV; ++h) (*draft.A_log)[h] = numeric::log(slope_of(h));
}

Problem bwd_masked_exp(const Settings& settings) {
  Draft draft(settings);
  draft.g = draft.gates(Stream::g, constant(settings["g"]));
  draft.beta = draft.betas(constant(0.5));
  return draft.finish();
}

Problem bwd_lb_saturated(const Settings& settings) {
  Draft draft(settings);
  const double least = settings["z"];
  gate_in_kernel(draft);
  draft.g = draft.gates(Stream::g, [least](const At& at, const Draw& draw) {
    return draw.uniform(least, 5 * least) / slope_of(at.h);
  });
  draft.draw_normal_state();
  return draft.finish();
}

Problem bwd_dgate_cancel(const Settings& settings) {
  Draft draft(settings);
  draft.k = draft.correlated_rows(0.5);
  draft.g = draft.gates(Stream::g, constant(settings["g"]));
  draft.beta = draft.betas(constant(0.9));
  draft.draw_normal_state();
  return draft.finish();
}

Problem bwd_gate_zero(const Settings& settings) {
  Draft draft(settings);
  draft.k = draft.correlated_rows(settings["rho"]);
  draft.g = draft.gates(Stream::g, constant(0));
  draft.beta = draft.betas(constant(0.9));
  return draft.finish();
}

Problem bwd_tail(const Settings& settings) {
  Draft draft(settings);
  draft.g = draft.gates(Stream::g, [&](const At& at, const Draw& draw) {
    const Draw jump = draft.draw(Stream::spike, {at.b, at.t, at.h, 0}, draft.HV, 1);
    return jump.uniform() < settings["p"] ? -20.0 : log_sigmoid(draw.normal());
  });
  draft.draw_normal_state();
  return draft.finish();
}

Problem bwd_chain(const Settings& settings) {
  const auto normal = [](const At&, const Draw& draw) { return draw.normal(); };
  Draft draft(settings);
  draft.options.qk_l2norm = draft.options.beta_sigmoid = true;
  draft.q = draft.keys(Stream::q, normal);
  draft.k = draft.keys(Stream::k, normal);
  draft.beta = draft.betas(normal);
  gate_in_kernel(draft);
  // Slope times argument stays within [-60, 45]: saturated, but nothing below what fp32 holds.
  draft.g = draft.gates(Stream::g, [](const At&, const Draw& draw) { return draw.uniform(-2, 2); });
  draft.dt_bias.emplace(draft.HV * draft.K);
  for (std::size_t i = 0; i < draft.dt_bias->size(); ++i)
    (*draft.dt_bias)[i] = draft.draw(Stream::bias, {0, 0, 0, i}, 1, draft.dt_bias->size()).uniform(-2, 1);
  draft.draw_normal_state();
  return draft.finish();
}

}  // namespace

std::vector<Recipe> backward_recipes() {
  const Parameter loss = shared("loss", 1), tokens = shared("T", 128), keys = shared("K", 64),
                  lanes = shared("V", 64);
  const Parameter gate{"g", "log decay of every token and channel", -5, -1000, 0};
  return {
      {"bwd_masked_exp",
       "the same gate everywhere: exponentials masked too late are finite forwards, NaN backwards",
       "1",
       {loss, tokens, keys, lanes, gate},
       bwd_masked_exp},
      {"bwd_lb_saturated",
       "bounded gates at their bound: 1 - sigmoid has no digits left, and anchors overflow",
       "11 15",
       {loss,
        tokens,
        keys,
        lanes,
        shared("H", 3),
        {"z", "least argument of the sigmoid; the largest is five times it", 8, 0, 100}},
       bwd_lb_saturated},
      {"bwd_dgate_cancel",
       "strong decay: the gradient of a gate is what is left of large terms that cancel",
       "43",
       {loss, tokens, keys, lanes, gate},
       bwd_dgate_cancel},
      {"bwd_gate_zero",
       "no decay: whatever divides by the gate, or by 1 - decay, has no gradient",
       "15 43",
       {loss, tokens, keys, lanes, {"rho", "expected cosine of two keys of a head", 0.5, 0, 1}},
       bwd_gate_zero},
      {"bwd_tail",
       "a short last chunk and tokens that wipe the state: its gradient must find the last row there is",
       "11 43",
       {loss, shared("T", 70), keys, lanes, {"p", "probability of -20 in all channels", 0.3, 0, 1}},
       bwd_tail},
      {"bwd_chain",
       "norm, gate, sigmoid and bias in the kernel, groups of heads: every chain rule and every sum",
       "50 54",
       {loss, shared("T", 130), shared("HV", 4), shared("K", 48), shared("V", 32)},
       bwd_chain},
  };
}

}  // namespace kda_check::kda::regimes
