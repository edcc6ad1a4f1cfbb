// Regimes of the carried state: slow decay, cancellation, range (docs/scenarios.md, "Carry,
// cancellation, storage").
#include <cmath>

#include "kda/regimes/draft.hpp"

namespace kda_check::kda::regimes {

namespace {

Problem slow_alpha(const Settings& settings) {
  Draft draft(settings);
  draft.g = draft.gates(Stream::g, constant(settings["g"]));
  draft.beta = draft.betas(constant(0.02));
  return draft.finish();
}

Problem residual_cancel(const Settings& settings) {
  Draft draft(settings);
  const auto channel = [](const At& at, std::size_t i) { return at.i == i ? 1.0 : 0.0; };
  draft.k = draft.keys(Stream::k, [&](const At& at, const Draw&) { return channel(at, 0); });
  // What is left beside the second row is a number of every format.
  draft.q = draft.keys(Stream::q, [&](const At& at, const Draw&) { return channel(at, 0) - channel(at, 1); });
  draft.v = draft.values(constant(4096));
  draft.g = draft.gates(Stream::g, constant(0));
  draft.beta = draft.betas(constant(0.5));
  draft.initial_state = draft.states([](const At& at, const Draw&) {
    if (at.t == 0) return 4098.0;
    return at.t == 1 ? 4080.0 : 0.0;
  });
  draft.keep_state = true;
  draft.options.scale = 1;
  return draft.finish();
}

/// Tokens write to the rows of the state beside the large element and read both.
Problem state_fp16_edge(const Settings& settings) {
  Draft draft(settings);
  const auto written_row = [&](std::size_t t) { return 1 + t % (draft.K - 1); };
  draft.k =
      draft.keys(Stream::k, [&](const At& at, const Draw&) { return at.i == written_row(at.t) ? 1.0 : 0.0; });
  draft.q = draft.keys(Stream::q, [&](const At& at, const Draw&) {
    if (at.t % 2 == 0) return at.i == 0 ? 0.5 : 0.0;
    return at.i == written_row(at.t) ? 1.0 : 0.0;
  });
  draft.v =
      draft.values([](const At&, const Draw& draw) { return 16 * (static_cast<double>(draw.below(9)) - 4); });
  draft.g = draft.gates(Stream::g, constant(0));
  draft.beta = draft.betas(constant(1));
  draft.initial_state = draft.states(
      [&](const At& at, const Draw&) { return at.t == 0 && at.i == draft.V / 2 ? 65536.0 : 0.0; });
  draft.keep_state = true;
  draft.options.scale = 1;
  return draft.finish();
}

/// What is added up over the keys keeps the columns of v apart: each is a problem of its own size.
Problem column_scales(const Settings& settings) {
  Draft draft(settings);
  const auto scaled = [&](const At& at, double value) {
    const Draw draw = draft.draw(Stream::column, {0, 0, at.h, at.i}, draft.HV, draft.V);
    return std::ldexp(value, -static_cast<int>(draw.below(settings.count("octaves") + 1)));
  };
  const Element normal = [&](const At& at, const Draw& draw) { return scaled(at, draw.normal()); };
  draft.v = draft.values(normal);
  draft.initial_state = draft.states(normal);
  draft.fill_defaults();
  for (std::size_t i = 0; i < draft.output_gradient.size(); ++i)
    draft.output_gradient[i] = scaled({0, 0, i / draft.V % draft.HV, i % draft.V}, draft.output_gradient[i]);
  if (!draft.state_gradient.empty()) draft.state_gradient = draft.states(normal, Stream::state_gradient);
  return draft.finish();
}

}  // namespace

std::vector<Recipe> carry_recipes() {
  const Parameter K = shared("K", 32), V = shared("V", 32);
  const char gate[] = "log decay of every token and channel";
  return {
      {"slow_alpha",
       "a small constant decay over many tokens: its rounding adds up",
       "41 47",
       {shared("T", 4096), K, V, {"g", gate, -1e-3, -1000, 0}},
       slow_alpha},
      {"weak_contraction_long",
       "slower and longer: how errors grow with T",
       "39",
       {shared("T", 16384), shared("H", 1), K, V, {"g", gate, -8e-5, -1000, 0}},
       slow_alpha},
      {"residual_cancel",
       "v minus its prediction is far smaller than either",
       "42",
       {shared("T", 64), shared("K", 64), shared("V", 64)},
       residual_cancel},
      {"state_fp16_edge",
       "one element of the state is beyond fp16, every output inside",
       "17",
       {shared("T", 64), {"K", "key width", 64, 2, 4096, true}, shared("V", 64)},
       state_fp16_edge},
      {"column_scales",
       "columns of v of very different sizes: an rms sees nothing of the small ones",
       "18",
       {K, V, {"octaves", "powers of two between the largest and the smallest", 8, 0, 64, true}},
       column_scales},
  };
}

}  // namespace kda_check::kda::regimes
