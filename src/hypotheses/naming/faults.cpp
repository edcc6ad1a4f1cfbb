#include "hypotheses/naming/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <numeric>
#include <span>

#include "hypotheses/naming/conditions.hpp"
#include "hypotheses/naming/moves.hpp"
#include "hypotheses/naming/term_faults.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::Gate;
using kda::Problem;
using At = Fault::At;
using Reading = Interpretation;

constexpr double log2_of_e = 1.4426950408889634;

std::size_t first_sequence(std::size_t, std::size_t) { return 0; }
std::size_t sequence_before(std::size_t own, std::size_t) { return own > 0 ? own - 1 : own; }
std::size_t sequence_behind(std::size_t own, std::size_t count) { return own + 1 < count ? own + 1 : own; }
std::size_t mirrored_sequence(std::size_t own, std::size_t count) { return count - 1 - own; }
std::size_t first_head(std::size_t, std::size_t, std::size_t) { return 0; }
std::size_t next_head(std::size_t own, std::size_t heads, std::size_t) { return (own + 1) % heads; }
std::size_t query_head(std::size_t own, std::size_t, std::size_t group) { return own / group; }
std::size_t interleaved_head(std::size_t own, std::size_t heads, std::size_t group) {
  return own % (heads / group);
}
double mean_of(std::span<const double> row) {
  return std::accumulate(row.begin(), row.end(), 0.0) / static_cast<double>(row.size());
}
double first_of(std::span<const double> row) { return row.front(); }
std::size_t bias_of_first_head(std::size_t, std::size_t k, std::size_t, std::size_t) { return k; }
std::size_t bias_by_channel(std::size_t head, std::size_t k, std::size_t heads, std::size_t) {
  return k * heads + head;
}
std::size_t bias_of_flat_head(std::size_t head, std::size_t, std::size_t, std::size_t) { return head; }
double first_order(double x) { return 1 + x; }
double second_order(double x) { return 1 + x + x * x / 2; }
double as_it_is(double decay) { return decay; }
double what_decayed(double decay) { return 1 - decay; }
double power_of_two(double x) { return numeric::exp2(x); }

bool has_wide_initial_state(const Problem& p) {
  return has_initial_state(p) && numeric::format_of(p.initial_state->dtype()).bytes > 2;
}
bool has_gates_of_channels(const Problem& p) { return p.dimensions().decays() > 1; }
bool has_decays_of_channels(const Problem& p) { return has_channels(p) && has_gates_of_channels(p); }
bool has_interleaved_heads(const Problem& p) { return p.dimensions().H > 1 && has_groups(p); }
bool has_biases_of_channels(const Problem& p) { return has_bias(p) && has_gates_of_channels(p); }
bool has_biased_A(const Problem& p) { return has_A_log(p) && p.dt_bias; }
bool has_long_sequences(const Problem& p) {
  const std::vector<kda::Sequence> all = p.sequences();
  return has_sequences(p) && std::ranges::all_of(all, [](const kda::Sequence& s) { return s.length() > 1; });
}
bool has_padding(const Problem& p) { return has_chunks(p) && has_gate(p); }
bool has_bounded_bias(const Problem& p) { return has_bounded_A(p) && p.dt_bias; }
bool has_softplus_of_bias(const Problem& p) { return has_softplus_A(p) && p.dt_bias; }
bool has_amplitudes_of_groups(const Problem& p) { return has_A_log(p) && has_groups(p); }
bool has_unusual_bound(const Problem& p) {
  return has_lower_bound(p) && p.options.lower_bound.value_or(usual_lower_bound) != usual_lower_bound;
}
bool has_initial_state_of_heads(const Problem& p) { return has_initial_state(p) && has_heads(p); }
bool has_initial_state_of_groups(const Problem& p) {
  return has_initial_state(p) && has_interleaved_heads(p);
}
bool scale_is_not(const Problem& p, double scale) { return std::fabs(p.scale() - scale) > 1e-12 * scale; }
bool is_scaled(const Problem& p) { return scale_is_not(p, 1); }
bool has_scaled_initial_state(const Problem& p) { return has_initial_state(p) && is_scaled(p); }
using KeyRow = std::span<const double>;
double width_of(KeyRow row) { return static_cast<double>(row.size()); }
double inverse_root(std::size_t size) { return 1 / std::sqrt(static_cast<double>(size)); }

/// One thing is read otherwise; by a kernel in chunks of `rows`; at a token.
template <auto field, auto value = true>
void set(Reading& reading, std::size_t) {
  reading.*field = value;
}
template <auto field, auto value = true>
void in_chunks(Reading& reading, std::size_t rows) {
  reading.*field = value, reading.chunk = rows;
}
/// What a move does, for what is too frequent to be looked for last.
void in_moved_chunks(Reading& reading, std::size_t rows) {
  static const std::vector<plain::MovedMatrix> all = plain::moved_matrices(false, false);
  const auto found = std::ranges::find_if(
      all, [](const plain::MovedMatrix& one) { return one.name() == "h_of_o_transposed"; });
  in_chunks<&Reading::chunk_fault, ChunkFault::moved>(reading, rows);
  reading.site = found->site, reading.move = found->move;
}
template <auto rounding>
void every_chunk_state(Reading& reading, std::size_t rows) {
  in_chunks<&Reading::round_carried, rounding>(reading, rows), reading.round_final = rounding;
}
template <auto field>
void at_token(Reading& reading, std::size_t token) {
  reading.*field = token;
}

/// A gate is made of something else, or otherwise; where another rule is set already, after it.
template <Reading::GateRule rule>
void of_gate(Reading& reading, std::size_t) {
  reading.gate_rules[reading.gate_rules[0] != nullptr ? 1 : 0] = rule;
}
template <Reading::GateRule rule>
constexpr Fault of_gate_rule(std::string_view name, std::string_view meaning, bool (*applies)(const Problem&),
                             bool is_variation = false) {
  return {name, meaning, applies, of_gate<rule>, At::everywhere, is_variation};
}
template <double (*length)(std::span<const double>)>
constexpr Fault of_norm(std::string_view name, std::string_view meaning, bool is_variation = false) {
  return {name, meaning, has_norm, set<&Reading::length, length>, At::everywhere, is_variation};
}
template <Joint joint>
constexpr Fault of_joint(std::string_view name, std::string_view meaning,
                         bool (*applies)(const Problem&) = always) {
  return {name,     meaning,
          applies,  [](Reading& reading, std::size_t part) { reading.joint = joint, reading.part = part; },
          At::part, true};
}

template <auto field>
void of_other_head(Reading& reading, std::size_t further) {
  reading.further.*field = further;
}

template <auto field>
constexpr Fault of_channels(std::string_view name, std::string_view meaning,
                            bool (*applies)(const Problem&)) {
  return {name,           meaning,
          applies,        [](Reading& reading, std::size_t) { reading.shifted.*field = true; },
          At::everywhere, true};
}

template <auto field>
constexpr Fault of_rows(std::string_view name, std::string_view meaning,
                        bool (*applies)(const Problem&) = always) {
  return {name,    meaning,
          applies, [](Reading& reading, std::size_t row) { reading.rows.*field = static_cast<RowOf>(row); },
          At::row, true};
}
template <auto field>
void by_factor(Reading& reading, std::size_t units) {
  reading.*field = static_cast<double>(units) * Fault::factor_unit;
}

/// A row about the chunk form.
template <ChunkFault fault>
constexpr Fault of_chunk_form(std::string_view name, std::string_view meaning, bool is_variation = false) {
  return {name, meaning, has_chunk_form, in_chunks<&Reading::chunk_fault, fault>, At::chunk, is_variation};
}
template <auto field>
constexpr Fault in_part(std::string_view name, std::string_view meaning) {
  return {name, meaning, has_channels, set<field>, At::everywhere, true, true};
}

/// By RowOf.
constexpr std::array<const char*, rows_of_others> words_of_rows = {
    "",
    "the same one of the first chunk",
    "the same one of the chunk before",
    "without the offset of its sequence",
    "that of batch row 0",
    "that of the token before",
    "that of the token behind",
    "that of the token before, zeros for the first",
    "that of the token behind, zeros for the last"};

constexpr Fault list[] = {
    // The gate.
    {"exp2", "the decay is exp2(g), not exp(g)", always, set<&Reading::decay, &power_of_two>},
    {"log2e_twice", "the decay is exp(g log2(e)): the gate was scaled for exp2 and exp was used", always,
     [](Reading& r, std::size_t) { r.gate_factor = log2_of_e; }},
    {"gate_linear", "g itself multiplies the state: the kernel takes g for exp(g)", always,
     set<&Reading::decay, &unchanged>},
    {"gate_sign", "the decay is exp(-g): the sign of the gate is turned", always,
     set<&Reading::gate_factor, -1>},
    {"gate_missing", "the state does not decay", always, set<&Reading::gate_factor, 0>},
    {"gate_doubled", "the gate is applied twice: exp(2 g)", always, set<&Reading::gate_factor, 2>},
    {"gate_late", "the gate acts one token late", always, set<&Reading::gate_delay, 1>},
    {"gate_early", "the gate acts one token early", always, set<&Reading::gate_delay, -1>},
    {"gate_of_first_head", "all heads decay as head 0", has_heads, set<&Reading::gate_of_first_head>},
    {"decay_in_bf16", "the decay is rounded to bf16", always, set<&Reading::round_decay, &to_bf16>},
    {"gate_sums_in_bf16", "the sum of the gates is rounded to bf16", has_chunks,
     in_chunks<&Reading::round_sums, &to_bf16>, At::chunk},
    {"gate_sums_in_fp16", "the sum of the gates is rounded to fp16", has_chunks,
     in_chunks<&Reading::round_sums, &to_fp16>, At::chunk, true},
    {"decay_linear", "the decay is 1 + g, not exp(g)", always, set<&Reading::decay, &first_order>,
     At::everywhere, true},
    {"decay_quadratic", "the decay is 1 + g + g^2 / 2, not exp(g)", always,
     set<&Reading::decay, &second_order>, At::everywhere, true},
    {"gate_mean", "the gate is averaged over the channels of a head", has_gates_of_channels,
     set<&Reading::one_gate, &mean_of>},
    {"gate_of_first_channel", "all channels of a head decay as its first one", has_gates_of_channels,
     set<&Reading::one_gate, &first_of>, At::everywhere, true},
    {"gate_raw", "g is used as the log decay, without the gate function", has_gate,
     [](Reading& r, std::size_t) { r.options.gate = Gate::none; }},
    of_gate_rule<[](GateInput& in) {
      in.function = [](const GateInput& of) { return std::max(of.bound, softplus_gate(of)); };
    }>("gate_clamped_softplus",
       "the gate is clamp(-exp(A_log) softplus(x), min=lower_bound), not lower_bound sigmoid",
       has_lower_bound),
    of_gate_rule<[](GateInput& in) { in.function = &softplus_gate; }>(
        "gate_softplus", "the gate is -exp(A_log) softplus(x), not lower_bound sigmoid", has_lower_bound),
    of_gate_rule<[](GateInput& in) { in.function = &bounded_gate; }>(
        "gate_lower_bound",
        "the gate is lower_bound sigmoid(exp(A_log) x) (bound -5 unless the file has one), not softplus",
        has_softplus),
    of_gate_rule<[](GateInput& in) { in.A = 1; }>("A_log_missing", "A_log is not used", has_A_log),
    of_gate_rule<[](GateInput& in) { in.A = in.A_log; }>(
        "A_log_not_raised", "A_log itself is used, without its exponential", has_A_log),
    of_gate_rule<[](GateInput& in) { in.A = -in.A_log; }>(
        "A_log_for_A", "A_log is used where -exp(A_log) belongs", has_A_log, true),
    of_gate_rule<[](GateInput& in) { in.A = numeric::exp(in.bias), in.bias = in.A_log; }>(
        "A_log_for_dt_bias", "A_log and dt_bias are taken for each other", has_biased_A, true),
    of_gate_rule<[](GateInput& in) { in.A = numeric::exp(-in.A); }>(
        "A_log_twice", "A_log is -exp(A_log) already: exp(-exp(A_log)) is used", has_A_log),
    of_gate_rule<[](GateInput& in) { in.A = 1 / in.A; }>(
        "A_log_negated", "exp(-A_log) is used: A_log has the other sign", has_A_log),
    of_gate_rule<[](GateInput& in) { in.A = numeric::exp2(in.A_log); }>(
        "A_log_exp2", "A_log is raised with exp2, not exp", has_A_log),
    of_gate_rule<[](GateInput& in) {
      in.function = [](const GateInput& of) { return of.A * of.bound * sigmoid(of.g + of.bias); };
    }>("A_log_outside", "the gate is exp(A_log) lower_bound sigmoid(x)", has_bounded_A, true),
    of_gate_rule<[](GateInput& in) {
      in.function = [](const GateInput& of) { return -softplus(of.A * (of.g + of.bias)); };
    }>("A_log_inside", "the gate is -softplus(exp(A_log) x)", has_softplus_A, true),
    {"gate_of_other_function", "softplus is another function", has_softplus,
     [](Reading& r, std::size_t which) { r.softplus = other_softplus()[which].of; }, At::function, true},
    of_gate_rule<[](GateInput& in) {
      in.function = [](const GateInput& of) { return -of.A * (softplus(of.g) + of.bias); };
    }>("dt_bias_behind", "the gate is -exp(A_log) (softplus(g) + dt_bias)", has_softplus_of_bias, true),
    of_gate_rule<[](GateInput& in) { in.A *= 2; }>(
        "gate_tanh", "the gate is lower_bound (1 + tanh(exp(A_log) x)) / 2: its argument is doubled",
        has_lower_bound, true),
    of_gate_rule<[](GateInput& in) {
      in.function = [](const GateInput& of) {
        return of.bound * std::clamp(of.A * (of.g + of.bias) / 6 + 0.5, 0.0, 1.0);
      };
    }>("gate_hard_sigmoid", "the gate is lower_bound clamp(exp(A_log) x / 6 + 1/2, 0, 1)", has_lower_bound,
       true),
    of_gate_rule<[](GateInput& in) { in.A = softplus(in.A_log); }>(
        "A_log_softplus", "softplus(A_log) is used, not exp(A_log)", has_A_log, true),
    of_gate_rule<[](GateInput& in) { in.g = -in.g, in.bias = -in.bias; }>(
        "gate_argument_negated", "the gate function takes -x, not x", has_gate, true),
    {"A_log_of_query_head", "value head h has the A_log of head h / (HV / H)", has_amplitudes_of_groups,
     set<&Reading::A_log_of_query_head>},
    {"lower_bound_of_usual", "lower_bound is -5, whatever the call says", has_unusual_bound,
     [](Reading& r, std::size_t) { r.options.lower_bound = usual_lower_bound; }},
    of_gate_rule<[](GateInput& in) { in.A = numeric::exp(to_bf16(in.A_log)), in.bias = to_bf16(in.bias); }>(
        "parameters_in_bf16", "A_log and dt_bias are rounded to bf16", has_gate),
    of_gate_rule<[](GateInput& in) {
      in.function = [](const GateInput& of) {
        const double x = of.g + of.bias;
        return 1 < x ? -of.A * x : softplus_gate(of);
      };
    }>("softplus_threshold", "softplus is linear from 1 on, not from 20", has_softplus),
    {"dt_bias_of_first_head", "all heads have the dt_bias of head 0",
     [](const Problem& p) { return p.dt_bias.has_value() && has_heads(p); },
     set<&Reading::bias_element, &bias_of_first_head>},
    {"dt_bias_of_query_head", "value head h has the dt_bias of head h / (HV / H)",
     [](const Problem& p) { return p.dt_bias.has_value() && has_groups(p); },
     set<&Reading::bias_of_query_head>, At::everywhere, true},
    {"gate_of_query_head", "value head h has the gate of head h / (HV / H)", has_interleaved_heads,
     set<&Reading::gate_of_query_head>},
    {"gate_of_other_head", "a value head has the gate of another one", has_heads,
     of_other_head<&HeadShifts::gate>, At::head, true},
    {"A_log_of_other_head", "a value head has A_log of another one",
     [](const Problem& p) { return has_heads(p) && has_A_log(p); }, of_other_head<&HeadShifts::amplitude>,
     At::head, true},
    {"dt_bias_of_other_head", "a value head has dt_bias of another one",
     [](const Problem& p) { return has_heads(p) && has_bias(p); }, of_other_head<&HeadShifts::bias>, At::head,
     true},
    {"parameters_of_other_head", "a value head has A_log and dt_bias of another one",
     [](const Problem& p) { return has_heads(p) && (has_A_log(p) || has_bias(p)); },
     of_other_head<&HeadShifts::parameters>, At::head, true},
    {"gate_sums_of_stream",
     "sums of gates start anew at multiples of a chunk of the packed row, not of a sequence", has_sequences,
     in_chunks<&Reading::sums_of_stream>, At::chunk},
    {"dt_bias_by_channel", "dt_bias is read as [K][HV], not [HV][K]",
     [](const Problem&
            p) { return has_gate(p) && p.dt_bias && p.dimensions().HV > 1 && p.dimensions().decays() > 1; },
     set<&Reading::bias_element, &bias_by_channel>},
    {"dt_bias_of_flat_head", "all channels of head h have element h of dt_bias, taken as one row",
     has_biases_of_channels, set<&Reading::bias_element, &bias_of_flat_head>, At::everywhere, true},
    of_gate_rule<[](GateInput& in) { in.bias = 0; }>("dt_bias_missing", "dt_bias is not added", has_bias),
    of_gate_rule<[](GateInput& in) { in.bias *= 2; }>("dt_bias_doubled", "dt_bias is added twice", has_bias),
    of_gate_rule<[](GateInput& in) { in.bias = -in.bias; }>("dt_bias_negated", "dt_bias is subtracted",
                                                            has_bias),
    of_gate_rule<[](GateInput& in) { in.bias /= in.A; }>(
        "dt_bias_outside", "the gate is lower_bound sigmoid(exp(A_log) g + dt_bias)", has_bounded_bias),
    of_gate_rule<[](GateInput& in) {
      in.function = [](const GateInput& of) { return -softplus(of.A * of.g + of.bias); };
    }>("dt_bias_beside", "the gate is -softplus(exp(A_log) g + dt_bias)", has_softplus_of_bias, true),
    of_rows<&RowsOf::gate>("gate_of_other_row", "a token has the gates of another row"),
    of_rows<&RowsOf::beta>("beta_of_other_row", "a token has the beta of another row", has_beta),
    of_channels<&ChannelShifts::bias_of_first_tile>(
        "dt_bias_of_first_tile", "dt_bias of the second tile of channels is that of the first",
        [](const Problem& p) { return has_bias(p) && has_decays_of_channels(p); }),
    of_channels<&ChannelShifts::gate_of_first_tile>(
        "gate_of_first_tile", "the second tile of channels decays by the gates of the first",
        has_decays_of_channels),
    of_channels<&ChannelShifts::gate_of_next>(
        "gate_of_next_channel", "a channel decays by the gate of the next one", has_decays_of_channels),
    // The delta rule.
    {"gate_behind_update", "the state decays behind the update, not before it", always,
     set<&Reading::decays_after_update>},
    {"prediction_misses_last",
     "the prediction misses what the token before wrote, except in the first row of a chunk: L lacks its "
     "first subdiagonal",
     has_chunks, in_chunks<&Reading::prediction_misses_last>, At::chunk},
    {"prediction_has_own", "the prediction contains what the token itself writes: L has its diagonal", always,
     set<&Reading::prediction_has_own>},
    {"output_misses_own", "o misses what its own token wrote: Aqk lacks its diagonal", always,
     set<&Reading::output_misses_own>},
    {"beta_on_value_only", "beta multiplies v alone, not the prediction", has_beta,
     set<&Reading::beta_on, BetaOn::value>},
    {"beta_on_prediction_only", "beta multiplies the prediction alone, not v", has_beta,
     set<&Reading::beta_on, BetaOn::prediction>},
    {"erase_missing", "nothing is erased: the prediction is not subtracted", always,
     set<&Reading::beta_on, BetaOn::value_alone>},
    {"beta_late", "beta acts one token late", has_beta, set<&Reading::beta_delay, 1>},
    {"beta_early", "beta acts one token early", has_beta, set<&Reading::beta_delay, -1>},
    {"beta_in_bf16", "beta is rounded to bf16", has_beta, set<&Reading::round_beta, &to_bf16>},
    {"residual_in_bf16", "v minus its prediction is rounded to bf16", always,
     set<&Reading::round_residual, &to_bf16>},
    {"predict_before_decay", "the prediction reads the state before its decay", always,
     set<&Reading::predict_before_decay>},
    {"beta_twice", "beta is applied twice", has_beta, set<&Reading::beta_squared>},
    {"beta_twice_on_value", "beta is applied twice to v, once to the prediction", has_beta,
     set<&Reading::beta_on_value>},
    {"beta_missing", "beta is not applied", has_beta, set<&Reading::beta_one>},
    {"beta_of_query_head", "value head h has the beta of head h / (HV / H)",
     [](const Problem& p) { return has_groups(p) && has_beta(p); }, set<&Reading::beta_of_query_head>},
    {"beta_of_other_head", "a value head has the beta of another one",
     [](const Problem& p) { return has_heads(p) && has_beta(p); }, of_other_head<&HeadShifts::beta>, At::head,
     true},
    {"value_of_other_head", "a value head reads the values of another one", has_heads,
     of_other_head<&HeadShifts::value>, At::head, true},
    {"beta_raw", "beta is used without its sigmoid", [](const Problem& p) { return p.options.beta_sigmoid; },
     [](Reading& r, std::size_t) { r.options.beta_sigmoid = r.options.allow_neg_eigval = false; }},
    {"beta_sigmoid", "beta goes through a sigmoid", [](const Problem& p) { return !p.options.beta_sigmoid; },
     [](Reading& r, std::size_t) { r.options.beta_sigmoid = true; }},
    {"beta_sigmoid_twice", "beta goes through a sigmoid twice",
     [](const Problem& p) { return p.options.beta_sigmoid; }, set<&Reading::sigmoid_twice>},
    {"beta_not_doubled", "beta lacks the factor 2 of allow_neg_eigval",
     [](const Problem& p) { return p.options.allow_neg_eigval; },
     [](Reading& r, std::size_t) { r.options.allow_neg_eigval = false; }},
    {"beta_doubled", "beta is doubled, as with allow_neg_eigval",
     [](const Problem& p) { return !p.options.allow_neg_eigval; }, set<&Reading::beta_factor, 2>},
    {"prediction_of_query", "predictions read the state along q, not k", always,
     set<&Reading::prediction_of_query>, At::everywhere, true},
    {"write_of_query", "the state is written along q, not k", always, set<&Reading::write_of_query>,
     At::everywhere, true},
    {"write_decayed", "what a token writes decays at once", always, set<&Reading::write_factor, &as_it_is>,
     At::everywhere, true},
    {"write_by_decay", "what a token writes is multiplied by 1 - exp(g)", always,
     set<&Reading::write_factor, &what_decayed>, At::everywhere, true},
    {"output_late", "o is that of the token before", always, set<&Reading::output_late>, At::everywhere,
     true},
    {"decay_along_columns", "the decay of channel i multiplies column i of the state, not row i",
     [](const Problem& p) { return has_gates_of_channels(p) && p.dimensions().K == p.dimensions().V; },
     set<&Reading::decays_columns>, At::everywhere, true},
    {"output_decayed_again", "o reads a state that has decayed once more", always,
     set<&Reading::decayed_again>, At::everywhere, true},
    // q and k.
    {"l2norm_missing", "q and k are not L2-normalised", [](const Problem& p) { return p.options.qk_l2norm; },
     [](Reading& r, std::size_t) { r.options.qk_l2norm = false; }},
    {"l2norm_applied", "q and k are L2-normalised", [](const Problem& p) { return !p.options.qk_l2norm; },
     [](Reading& r, std::size_t) { r.options.qk_l2norm = true; }},
    {"query_not_normalised", "q is not L2-normalised", has_norm, set<&Reading::normalises_query, false>},
    {"key_not_normalised", "k is not L2-normalised", has_norm, set<&Reading::normalises_key, false>},
    of_norm<[](KeyRow row) { return std::sqrt(squares(row) / width_of(row) + norm_epsilon); }>(
        "norm_of_mean", "q and k are divided by the root of the mean of their squares, not of the sum"),
    of_norm<[](KeyRow row) { return squares(row) + norm_epsilon; }>(
        "norm_squared", "q and k are divided by the sum of their squares, without its root", true),
    of_norm<[](KeyRow row) {
      return l2norm(row.first(std::bit_floor(std::max<std::size_t>(row.size(), 2) - 1)));
    }>("norm_of_first_tile", "the norm is that of the first tile of channels alone", true),
    {"norm_of_heads", "q and k are normalised over all heads together",
     [](const Problem& p) { return has_norm(p) && p.dimensions().H > 1; }, set<&Reading::norm_of_heads>},
    of_norm<[](KeyRow row) { return std::sqrt(squares(row)); }>("epsilon_missing", "the norm has no epsilon"),
    of_norm<[](KeyRow row) { return std::sqrt(squares(row)) + norm_epsilon; }>(
        "epsilon_outside", "epsilon is added to the norm, outside the root"),
    of_norm<[](KeyRow row) { return std::max(std::sqrt(squares(row)), norm_epsilon); }>(
        "epsilon_as_least", "epsilon is the least that the norm may be"),
    of_norm<[](KeyRow row) { return std::sqrt(squares(row) + width_of(row) * norm_epsilon); }>(
        "epsilon_of_mean", "epsilon is added to the mean of the squares, not to their sum"),
    of_norm<[](KeyRow row) {
      double sum = 0;
      for (const double x : row) sum = to_bf16(sum + x * x);
      return std::sqrt(sum + norm_epsilon);
    }>("norm_in_bf16", "the squares of q and k are summed in bf16", true),
    {"value_normalised", "v is L2-normalised, too", always, set<&Reading::normalises_value>, At::everywhere,
     true},
    {"query_key_swapped", "q and k are swapped", always, set<&Reading::query_key_swapped>},
    of_rows<&RowsOf::query>("query_of_other_row", "a token reads q of another row"),
    of_rows<&RowsOf::key>("key_of_other_row", "a token reads k of another row"),
    of_rows<&RowsOf::predicting_key>("prediction_of_other_row",
                                     "the prediction reads the state along k of another row"),
    {"input_in_other_layout", "an input is read in another layout", always,
     [](Reading& r, std::size_t which) {
       r.in_layout = static_cast<TokenInput>(which / input_layouts().size());
       r.layout = &input_layouts()[which % input_layouts().size()];
     },
     At::layout, true},
    {"prediction_of_raw_key", "the prediction reads the state along k before its norm", has_norm,
     set<&Reading::prediction_of_raw_key>, At::everywhere, true},
    {"own_token_unweighted", "o reads what its own token writes without beta", has_beta,
     set<&Reading::output_has_own_unweighted>, At::everywhere, true},
    of_rows<&RowsOf::value>("value_of_other_row", "a token reads v of another row"),
    {"key_interleaved", "value head h reads k of query head h mod H, q of its own", has_interleaved_heads,
     set<&Reading::key_interleaved>, At::everywhere, true},
    of_channels<&ChannelShifts::query_of_first_tile>(
        "query_of_first_tile", "q of the second tile of channels is that of the first", has_channels),
    of_channels<&ChannelShifts::key_of_first_tile>(
        "key_of_first_tile", "k of the second tile of channels is that of the first", has_channels),
    {"first_query_head", "all value heads read query head 0",
     [](const Problem& p) { return p.dimensions().H > 1; }, set<&Reading::first_query_head>},
    {"query_head_of_other", "q and k are read from another query head",
     [](const Problem& p) { return p.dimensions().H > 1; }, of_other_head<&HeadShifts::key>, At::head, true},
    {"heads_interleaved", "value head h reads query head h mod H, not h / (HV / H)", has_interleaved_heads,
     set<&Reading::heads_interleaved>},
    // The output.
    {"scale_missing", "q is not scaled", [](const Problem& p) { return scale_is_not(p, 1); },
     [](Reading& r, std::size_t) { r.options.scale = 1; }},
    {"scale_from_key_width", "the scale is 1/sqrt(K)",
     [](const Problem& p) { return scale_is_not(p, inverse_root(p.dimensions().K)); },
     [](Reading& r, std::size_t) { r.options.scale = inverse_root(r.key_width); }},
    {"scale_from_value_width", "the scale is 1/sqrt(V)",
     [](const Problem& p) {
       return p.dimensions().V != p.dimensions().K && scale_is_not(p, inverse_root(p.dimensions().V));
     },
     [](Reading& r, std::size_t) { r.options.scale = inverse_root(r.value_width); }},
    {"scale_twice", "the scale is applied twice", [](const Problem& p) { return scale_is_not(p, 1); },
     [](Reading& r, std::size_t) { r.output_factor = *r.options.scale; }},
    {"output_doubled", "the output is doubled", always, set<&Reading::output_factor, 2>},
    {"output_sign", "o has the other sign", always, set<&Reading::output_factor, -1>},
    {"output_unwritten", "o is not written (zero)", always, set<&Reading::output_factor, 0>},
    in_part<&Reading::untouched>("channels_untouched", "nothing reads or changes the state"),
    // The states.
    {"nothing_written", "neither o nor the final state is written (zero)", always,
     [](Reading& r, std::size_t) { r.output_factor = 0, r.final = FinalState::zero; }},
    {"final_state_unwritten", "the final state is not written (zero)", always,
     set<&Reading::final, FinalState::zero>},
    {"final_state_initial", "the final state is the initial state", has_initial_state,
     set<&Reading::final, FinalState::initial>, At::everywhere, true},
    {"final_state_decayed_again", "the final state has decayed once more, by the gates of the last token",
     always, set<&Reading::final, FinalState::decayed_again>, At::everywhere, true},
    {"final_state_early", "the final state is the one behind an earlier token", always,
     [](Reading& r, std::size_t token) { r.final = FinalState::early, r.final_at = token; }, At::stored,
     true},
    {"initial_state_again",
     "the final state has the initial state once more, added where a part of the sequence begins",
     has_initial_state,
     [](Reading& r, std::size_t part) { r.final = FinalState::initial_again, r.final_at = part; }, At::part,
     true},
    {"initial_state_missing", "the initial state is dropped", has_initial_state,
     set<&Reading::initial_state, false>},
    {"initial_state_in_bf16", "the initial state is rounded to bf16", has_wide_initial_state,
     set<&Reading::round_initial, &to_bf16>},
    {"initial_state_of_first", "every sequence starts from the initial state of sequence 0",
     has_initial_states, set<&Reading::initial_sequence, &first_sequence>},
    {"initial_state_of_head_0", "all heads start from the initial state of head 0",
     has_initial_state_of_heads, set<&Reading::initial_head, &first_head>, At::everywhere, true},
    {"initial_state_of_next_head", "a head starts from the initial state of the next one",
     has_initial_state_of_heads, set<&Reading::initial_head, &next_head>, At::everywhere, true},
    {"initial_state_of_query_head", "value head h starts from the initial state of head h / (HV / H)",
     has_initial_state_of_groups, set<&Reading::initial_head, &query_head>, At::everywhere, true},
    {"initial_state_interleaved", "value head h starts from the initial state of head h mod H",
     has_initial_state_of_groups, set<&Reading::initial_head, &interleaved_head>, At::everywhere, true},
    {"initial_state_scaled", "the initial state is multiplied by the scale", has_scaled_initial_state,
     set<&Reading::initial_scaled>, At::everywhere, true},
    {"initial_state_of_before", "every sequence starts from the initial state of the one before",
     has_initial_states, set<&Reading::initial_sequence, &sequence_before>, At::everywhere, true},
    {"initial_states_reversed", "the sequences start from the initial states in reverse order",
     has_initial_states, set<&Reading::initial_sequence, &mirrored_sequence>, At::everywhere, true},
    {"initial_state_of_next", "every sequence starts from the initial state of the one behind",
     has_initial_states, set<&Reading::initial_sequence, &sequence_behind>, At::everywhere, true},
    {"initial_state_by_head", "the initial states are read as [HV][N], not [N][HV]",
     [](const Problem& p) { return has_initial_states(p) && has_heads(p); },
     set<&Reading::initial_state_by_head>},
    {"state_lost_in_chunks", "each chunk starts from zeros: the state is not carried into it", has_chunks,
     in_chunks<&Reading::loses_states>, At::chunk},
    {"state_lost", "the state before a token is lost: what follows starts from zeros", always,
     at_token<&Reading::lost_state>, At::start},
    of_joint<Joint::alone>(
        "part_alone", "what a part of the sequence makes of zeros is handed on, without the state before it"),
    of_joint<Joint::chunk_lost>("resumed_chunk_early",
                                "where a sequence goes on, the state is that before the last chunk"),
    of_joint<Joint::token_twice>("resumed_token_twice",
                                 "where a sequence goes on, the token before is applied once more"),
    of_joint<Joint::undecayed>(
        "part_undecayed",
        "the state before a part of the sequence, and what the part makes of zeros, are "
        "added as they are"),
    of_joint<Joint::unerased>("part_unerased",
                              "the state before a part of the sequence decays over it, and nothing of it is "
                              "erased"),
    of_joint<Joint::initial_lost>("part_without_initial",
                                  "the initial state does not get beyond the first part of the sequence",
                                  has_initial_state),
    of_joint<Joint::one_part>("part_of_one",
                              "a part of the sequence starts from what the part before makes of zeros",
                              has_initial_state),
    of_joint<Joint::chunk_twice>("resumed_chunk_twice",
                                 "where a sequence goes on, the chunk before is applied once more"),
    of_joint<Joint::decay_twice>(
        "resumed_decay_twice",
        "where a sequence goes on, the decays of the chunk before are applied once more"),
    {"state_in_bf16", "the state is rounded to bf16 at every token", always,
     set<&Reading::round_state, &to_bf16>},
    {"state_in_fp16", "the state is rounded to fp16 at every token", always,
     set<&Reading::round_state, &to_fp16>},
    {"state_stored_in_bf16", "the state is stored in bf16 behind every token; o reads it before", always,
     set<&Reading::round_stored, &to_bf16>},
    {"state_stored_in_fp16", "the state is stored in fp16 behind every token; o reads it before", always,
     set<&Reading::round_stored, &to_fp16>},
    {"carried_state_in_bf16", "the carried state is rounded to bf16", has_chunks,
     in_chunks<&Reading::round_carried, &to_bf16>, At::chunk},
    {"carried_state_in_fp16", "the carried state is rounded to fp16", has_chunks,
     in_chunks<&Reading::round_carried, &to_fp16>, At::chunk},
    {"final_state_in_bf16", "the final state is rounded to bf16", always,
     set<&Reading::round_final, &to_bf16>, At::everywhere, true},
    {"final_state_in_fp16", "the final state is rounded to fp16", always,
     set<&Reading::round_final, &to_fp16>, At::everywhere, true},
    {"chunk_states_in_bf16", "the state behind every chunk, the last one, too, is rounded to bf16",
     has_chunks, every_chunk_state<&to_bf16>, At::chunk},
    {"chunk_states_in_fp16", "the state behind every chunk, the last one, too, is rounded to fp16",
     has_chunks, every_chunk_state<&to_fp16>, At::chunk},
    {"carried_state_transposed", "o reads the states between chunks in the other layout (K and V swapped)",
     [](const Problem& p) { return has_chunk_form(p) && p.dimensions().K == p.dimensions().V; },
     in_moved_chunks, At::chunk},
    {"tail_lost", "the final state lacks a shorter last chunk", has_chunks,
     in_chunks<&Reading::final, FinalState::tail_lost>, At::chunk},
    {"tail_decay_stale", "a shorter last chunk decays the state by the gates of the chunk before", has_chunks,
     in_chunks<&Reading::final, FinalState::tail_decay_stale>, At::chunk},
    {"tail_end_lost", "a shorter last chunk reads the end of its gates from a row behind it, where it is 0",
     has_chunks, in_chunks<&Reading::final, FinalState::tail_end_lost>, At::chunk, true},
    {"padding_decays", "rows that a shorter last chunk lacks decay the final state by the gate of zeros",
     has_padding, in_chunks<&Reading::final, FinalState::padding_decays>, At::chunk, true},
    {"rows_behind",
     "rows behind the end of a shorter last chunk count: the state gets those of the next sequence, "
     "undecayed",
     has_sequences, in_chunks<&Reading::final, FinalState::rows_behind>, At::chunk, true},
    {"stale_rows",
     "rows behind the end of a shorter last chunk count: the state gets what the chunk before wrote there",
     has_chunks, in_chunks<&Reading::final, FinalState::stale_rows>, At::chunk},
    {"carried_undecayed", "the state does not decay from chunk to chunk", has_chunks,
     in_chunks<&Reading::carries_undecayed>, At::chunk},
    {"writes_undecayed", "what a chunk writes does not decay to the end of the chunk", has_chunks,
     in_chunks<&Reading::writes_undecayed>, At::chunk},
    // The chunk form.
    of_chunk_form<ChunkFault::exp2_within>("exp2_within",
                                           "the decays between rows of a chunk are powers of two"),
    of_chunk_form<ChunkFault::exp2_across>("exp2_across",
                                           "the decays from and to the ends of a chunk are powers of two"),
    of_chunk_form<ChunkFault::anchors_apart>(
        "anchors_apart",
        "blocks of 16 off the diagonal lack the decay of their first row: the anchors of rows and columns "
        "differ"),
    of_chunk_form<ChunkFault::sums_over_chunks>("sums_over_chunks",
                                                "sums of gates do not start anew where a chunk begins", true),
    of_chunk_form<ChunkFault::end_of_row_before>("end_of_row_before",
                                                 "G_n is that of the last row but one of a chunk", true),
    of_chunk_form<ChunkFault::column_beta>("column_beta", "L has the beta of its column, not of its row"),
    of_chunk_form<ChunkFault::inverse_series_2>("inverse_series_2",
                                                "the series of the inverse ends behind L"),
    of_chunk_form<ChunkFault::inverse_series_4>("inverse_series_4",
                                                "the series of the inverse ends behind L^3"),
    of_chunk_form<ChunkFault::inverse_series_8>("inverse_series_8",
                                                "the series of the inverse ends behind L^7"),
    of_chunk_form<ChunkFault::inverse_series_16>("inverse_series_16",
                                                 "the series of the inverse ends behind L^15"),
    of_chunk_form<ChunkFault::inverse_last_row>(
        "inverse_last_row", "the last row of each block of 16 of the inverse is not substituted", true),
    of_chunk_form<ChunkFault::carry_by_column>(
        "carry_by_column", "exp(G_n) decays the columns of the state, not its rows", true),
    of_chunk_form<ChunkFault::writes_unerased>("writes_unerased",
                                               "the state is written with u, not with u - w h"),
    of_chunk_form<ChunkFault::output_unerased>("output_unerased", "o is read from u, not from u - w h"),
    of_chunk_form<ChunkFault::initial_state_late>(
        "initial_state_late", "the first chunk does not read the initial state, and leaves it decayed", true),
    of_chunk_form<ChunkFault::first_chunk_alone>(
        "first_chunk_alone", "o of the first chunk does not read the initial state", true),
    of_chunk_form<ChunkFault::tail_without_scores>("tail_without_scores",
                                                   "o of a last chunk that is shorter lacks Aqk v_new", true),
    of_chunk_form<ChunkFault::scores_unmasked>("scores_unmasked",
                                               "Aqk is not masked: o sees later rows of its chunk"),
    of_chunk_form<ChunkFault::scores_of_next>("scores_of_next",
                                              "Aqk is masked a row late: o sees the next row", true),
    of_chunk_form<ChunkFault::state_of_before>("state_of_before",
                                               "o reads the state that entered the chunk before"),
    of_chunk_form<ChunkFault::state_of_after>("state_of_after", "o reads the state that leaves its chunk"),
    {"state_of_first", "o of all sequences reads the states of the first one",
     [](const Problem& p) { return has_chunk_form(p) && has_sequences(p); },
     in_chunks<&Reading::chunk_fault, ChunkFault::state_of_first>, At::chunk, true},
    {"state_of_stream",
     "o reads the state of another chunk: the one of its number where chunks of the packed row are counted",
     [](const Problem& p) { return has_chunk_form(p) && has_sequences(p); },
     in_chunks<&Reading::chunk_fault, ChunkFault::state_of_stream>, At::chunk, true},
    {"inverse_product", "a block of 16 of the inverse lacks one product of its sum", has_chunk_form,
     [](Reading& r, std::size_t which) { r.chunk_fault = ChunkFault::inverse_product, r.block = which; },
     At::block},
    // What is wrong by some factor.
    {"scale_factor", "the scale is wrong by a factor", always, by_factor<&Reading::output_factor>,
     At::factor},
    {"gate_factor", "the log decay is wrong by a factor", always, by_factor<&Reading::gate_factor>,
     At::factor},
    {"gate_raised", "log decays are raised to a bound: -{:.4g}", always, by_factor<&Reading::lowest_gate>,
     At::factor, true},
    {"epsilon_larger", "epsilon is larger by {:.4g}", has_norm, by_factor<&Reading::more_epsilon>, At::factor,
     true},
    {"beta_factor", "beta is wrong by a factor", has_beta, by_factor<&Reading::beta_factor>, At::factor},
    // Sequences, and layouts of their states.
    {"sequence_goes_on", "a sequence starts from the state that the one before it left",
     [](const Problem& p) { return p.sequences().size() > 1; }, set<&Reading::goes_on>},
    {"sequence_late", "sequences behind the first of a row begin one token late", has_long_sequences,
     set<&Reading::begins_late, 1>, At::everywhere, true},
    {"sequence_early", "sequences behind the first of a row begin one token early", has_long_sequences,
     set<&Reading::begins_late, -1>, At::everywhere, true},
    {"initial_state_transposed", "the initial state is read in the other layout (K and V swapped)",
     has_initial_state, set<&Reading::initial_state_transposed>},
    {"final_state_transposed", "the final state is written in the other layout (K and V swapped)", always,
     set<&Reading::final_state_transposed>},
    {"states_transposed", "both states are in the other layout (K and V swapped)", has_initial_state,
     [](Reading& r, std::size_t) { r.initial_state_transposed = r.final_state_transposed = true; }},
    // Single tokens.
    {"last_token_dropped", "the last token is dropped: no output, no update", always,
     set<&Reading::last_token, LastToken::dropped>},
    {"last_row_unwritten", "the last row of o is not written (zero)", always,
     set<&Reading::last_token, LastToken::unwritten>},
    {"write_lost", "the update of one token is lost", always, at_token<&Reading::lost_write>, At::token},
    {"decay_missed", "the state does not decay at one token", always, at_token<&Reading::lost_decay>,
     At::token},
    {"row_stale", "a row of o is that of the token before", always, at_token<&Reading::stale_row>, At::token},
};

}  // namespace

void Fault::apply(Interpretation& reading, std::size_t where) const {
  if (change != nullptr) return change(reading, where);
  reading.chunk = where, reading.chunk_fault = ChunkFault::of_term;
  reading.chunk_term = term, reading.term_fault = of_term;
}

std::span<const Fault> faults() {
  static const std::vector<Fault> all = [] {
    std::vector<Fault> rows(std::begin(list), std::end(list));
    std::ranges::move(term_faults(), std::back_inserter(rows));
    return rows;
  }();
  return all;
}

std::string words_of_place(const Fault& fault, std::size_t at) {
  const std::size_t layouts = input_layouts().size();
  switch (fault.at) {
    case At::head:
      return fmt::format(" ({} further on)", at);
    case At::layout:
      return fmt::format(": {} {}", token_inputs[at / layouts], input_layouts()[at % layouts].name);
    case At::function:
      return fmt::format(": {}", other_softplus()[at].words);
    case At::row:
      return fmt::format(": {}", words_of_rows[at]);
    case At::chunk:
      return fmt::format(" (chunks of {})", at);
    case At::part:
      return fmt::format(" (parts of {})", at);
    case At::block: {
      const InverseProduct& of = inverse_products[at];
      return fmt::format(" (block {0},{1}: L({0},{2}) A({2},{1}))", of.row, of.column, of.m);
    }
    default:
      return is_at_token(fault) ? fmt::format(" (t={})", at) : std::string();
  }
}

std::size_t place_of(const Fault& fault, std::size_t token, std::size_t chunk_rows) {
  constexpr double usual_factor = 1.25;
  switch (fault.at) {
    case At::token:
    case At::start:
    case At::stored:
    case At::part:
      return token;
    case At::block:
    case At::layout:
    case At::function:
      return 0;
    case At::head:
      return 1;
    case At::row:
      return static_cast<std::size_t>(RowOf::first_chunk);
    case At::factor:
      return static_cast<std::size_t>(usual_factor / Fault::factor_unit);
    default:
      return chunk_rows;
  }
}

}  // namespace kda_check::hypotheses
