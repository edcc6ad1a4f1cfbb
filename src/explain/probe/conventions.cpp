#include "explain/probe/conventions.hpp"

#include <cmath>

#include "numeric/elementary.hpp"

namespace kda_check::explain {

namespace {

using kda::Gate;
using kda::Problem;

constexpr double log2_of_e = 1.4426950408889634;
/// The bound that kernels use where nobody says another.
constexpr double usual_lower_bound = -5;

double identity(double x) { return x; }
double power_of_two(double x) { return numeric::exp2(x); }

bool always(const Problem&) { return true; }
bool has_initial_state(const Problem& p) { return p.initial_state.has_value(); }
bool has_gate(const Problem& p) { return p.options.gate != Gate::none; }
bool has_softplus(const Problem& p) { return p.options.gate == Gate::softplus; }
bool has_lower_bound(const Problem& p) { return p.options.gate == Gate::lower_bound; }
bool scale_is_not(const Problem& p, double scale) { return std::fabs(p.scale() - scale) > 1e-12 * scale; }
double inverse_root(std::size_t size) { return 1 / std::sqrt(static_cast<double>(size)); }

constexpr Convention list[] = {
    // The gate.
    {"exp2", "the decay is exp2(g), not exp(g)", always,
     [](Interpretation& r, std::size_t) { r.decay = &power_of_two; }},
    {"log2e_twice", "the decay is exp(g log2(e)): the gate was scaled for exp2 and exp was used", always,
     [](Interpretation& r, std::size_t) { r.gate_factor = log2_of_e; }},
    {"gate_linear", "g itself multiplies the state: the kernel takes g for exp(g)", always,
     [](Interpretation& r, std::size_t) { r.decay = &identity; }},
    {"gate_sign", "the decay is exp(-g): the sign of the gate is turned", always,
     [](Interpretation& r, std::size_t) { r.gate_factor = -1; }},
    {"gate_missing", "the state does not decay", always,
     [](Interpretation& r, std::size_t) { r.gate_factor = 0; }},
    {"gate_late", "the gate acts one token late", always,
     [](Interpretation& r, std::size_t) { r.gate_delay = 1; }},
    {"gate_early", "the gate acts one token early", always,
     [](Interpretation& r, std::size_t) { r.gate_delay = -1; }},
    {"gate_mean", "the gate is averaged over the channels of a head", always,
     [](Interpretation& r, std::size_t) { r.gate_mean = true; }},
    {"gate_raw", "g is used as the log decay, without the gate function", has_gate,
     [](Interpretation& r, std::size_t) { r.options.gate = Gate::none; }},
    {"gate_clamped_softplus",
     "the gate is clamp(-exp(A_log) softplus(x), min=lower_bound), not lower_bound sigmoid", has_lower_bound,
     [](Interpretation& r, std::size_t) { r.clamped_softplus = true; }},
    {"gate_softplus", "the gate is -exp(A_log) softplus(x), not lower_bound sigmoid", has_lower_bound,
     [](Interpretation& r, std::size_t) { r.options.gate = Gate::softplus; }},
    {"gate_lower_bound",
     "the gate is lower_bound sigmoid(exp(A_log) x) (bound -5 unless the file has one), not softplus",
     has_softplus,
     [](Interpretation& r, std::size_t) {
       r.options.gate = Gate::lower_bound;
       r.options.lower_bound = r.options.lower_bound.value_or(usual_lower_bound);
     }},
    {"A_log_missing", "A_log is not used",
     [](const Problem& p) { return has_gate(p) && p.A_log.has_value(); },
     [](Interpretation& r, std::size_t) { r.A_log = false; }},
    {"dt_bias_missing", "dt_bias is not added",
     [](const Problem& p) { return has_gate(p) && p.dt_bias.has_value(); },
     [](Interpretation& r, std::size_t) { r.dt_bias = false; }},
    // The delta rule.
    {"predict_before_decay", "the prediction reads the state before its decay", always,
     [](Interpretation& r, std::size_t) { r.predict_before_decay = true; }},
    {"beta_twice", "beta is applied twice", always,
     [](Interpretation& r, std::size_t) { r.beta_squared = true; }},
    {"beta_twice_on_value", "beta is applied twice to v, once to the prediction", always,
     [](Interpretation& r, std::size_t) { r.beta_on_value = true; }},
    {"beta_missing", "beta is not applied", always,
     [](Interpretation& r, std::size_t) { r.beta_one = true; }},
    {"beta_raw", "beta is used without its sigmoid", [](const Problem& p) { return p.options.beta_sigmoid; },
     [](Interpretation& r, std::size_t) { r.options.beta_sigmoid = r.options.allow_neg_eigval = false; }},
    {"beta_sigmoid", "beta goes through a sigmoid", [](const Problem& p) { return !p.options.beta_sigmoid; },
     [](Interpretation& r, std::size_t) { r.options.beta_sigmoid = true; }},
    {"beta_not_doubled", "beta lacks the factor 2 of allow_neg_eigval",
     [](const Problem& p) { return p.options.allow_neg_eigval; },
     [](Interpretation& r, std::size_t) { r.options.allow_neg_eigval = false; }},
    {"beta_doubled", "beta is doubled, as with allow_neg_eigval",
     [](const Problem& p) { return !p.options.allow_neg_eigval; },
     [](Interpretation& r, std::size_t) { r.beta_factor = 2; }},
    // q and k.
    {"l2norm_missing", "q and k are not L2-normalised", [](const Problem& p) { return p.options.qk_l2norm; },
     [](Interpretation& r, std::size_t) { r.options.qk_l2norm = false; }},
    {"l2norm_applied", "q and k are L2-normalised", [](const Problem& p) { return !p.options.qk_l2norm; },
     [](Interpretation& r, std::size_t) { r.options.qk_l2norm = true; }},
    {"heads_interleaved", "value head h reads query head h mod H, not h / (HV / H)",
     [](const Problem& p) { return p.dimensions().H > 1 && p.dimensions().HV > p.dimensions().H; },
     [](Interpretation& r, std::size_t) { r.heads_interleaved = true; }},
    // The output.
    {"scale_missing", "q is not scaled", [](const Problem& p) { return scale_is_not(p, 1); },
     [](Interpretation& r, std::size_t) { r.options.scale = 1; }},
    {"scale_from_key_width", "the scale is 1/sqrt(K)",
     [](const Problem& p) { return scale_is_not(p, inverse_root(p.dimensions().K)); },
     [](Interpretation& r, std::size_t) { r.options.scale = inverse_root(r.key_width); }},
    {"scale_from_value_width", "the scale is 1/sqrt(V)",
     [](const Problem& p) {
       return p.dimensions().V != p.dimensions().K && scale_is_not(p, inverse_root(p.dimensions().V));
     },
     [](Interpretation& r, std::size_t) { r.options.scale = inverse_root(r.value_width); }},
    {"scale_twice", "the scale is applied twice", [](const Problem& p) { return scale_is_not(p, 1); },
     [](Interpretation& r, std::size_t) { r.output_factor = *r.options.scale; }},
    {"output_doubled", "the output is doubled", always,
     [](Interpretation& r, std::size_t) { r.output_factor = 2; }},
    // The states.
    {"initial_state_missing", "the initial state is dropped", has_initial_state,
     [](Interpretation& r, std::size_t) { r.initial_state = false; }},
    {"initial_state_transposed", "the initial state is read in the other layout (K and V swapped)",
     has_initial_state, [](Interpretation& r, std::size_t) { r.initial_state_transposed = true; }},
    {"final_state_transposed", "the final state is written in the other layout (K and V swapped)", always,
     [](Interpretation& r, std::size_t) { r.final_state_transposed = true; }},
    {"states_transposed", "both states are in the other layout (K and V swapped)", has_initial_state,
     [](Interpretation& r, std::size_t) { r.initial_state_transposed = r.final_state_transposed = true; }},
    // Single tokens.
    {"last_token_dropped", "the last token is dropped: no output, no update", always,
     [](Interpretation& r, std::size_t) { r.last_token = LastToken::dropped; }},
    {"last_row_stale", "the last row of o is that of the token before", always,
     [](Interpretation& r, std::size_t) { r.last_token = LastToken::stale; }},
    {"last_row_unwritten", "the last row of o is not written (zero)", always,
     [](Interpretation& r, std::size_t) { r.last_token = LastToken::unwritten; }},
    {"write_lost", "the update of one token is lost", always,
     [](Interpretation& r, std::size_t token) { r.lost_write = token; }, true},
};

}  // namespace

std::span<const Convention> conventions() { return list; }

}  // namespace kda_check::explain
