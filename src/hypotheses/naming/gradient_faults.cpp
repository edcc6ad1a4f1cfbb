// What backward passes have got wrong, one row each (docs/explain.md). To add one, add a row.
#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "hypotheses/naming/conditions.hpp"
#include "hypotheses/naming/interpretation.hpp"
#include "hypotheses/naming/reference_backward.hpp"
#include "hypotheses/naming/term_faults.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::Problem;
using tensor::Tensor;
using enum Term;
using enum TermFault;

/// Of a term: which gradient lacks it, how docs/kda.md writes it, and what is wrong with it at times.
struct TermRow {
  Term term;
  std::string_view name, of, formula;
  std::vector<TermFault> changes;
};

const std::vector<TermRow>& term_rows() {
  static const std::vector<TermRow> rows{
      {dv_scores, "dv_scores", "dv", "Aqk^T do", {lost, negated, doubled}},
      {dv_state, "dv_state", "dv", "kg dh", {lost, negated, undecayed, doubled, first_tile, last_tile}},
      {dh_carry, "dh_carry", "the gradient of the state", "2^Gn dh", {lost, undecayed}},
      {dh_query,
       "dh_query",
       "the gradient of the state",
       "scale qg^T do",
       {lost, negated, undecayed, unscaled}},
      {dh_prediction, "dh_prediction", "the gradient of the state", "-w^T dv", {lost, negated}},
      {dq_state,
       "dq_state",
       "dq",
       "scale 2^G (do h^T)",
       {lost, lost_alone, negated, undecayed, unscaled, doubled, first_tile, last_tile}},
      {dq_scores, "dq_scores", "dq", "dAqk k 2^(G_i - G_j)", {lost, lost_alone, undecayed, unscaled}},
      {dk_state,
       "dk_state",
       "dk",
       "2^(Gn - G) (v_new dh^T)",
       {lost, lost_alone, negated, undecayed, doubled, first_tile, last_tile}},
      {dk_w, "dk_w", "dk", "beta 2^G dkb", {lost, negated, undecayed, unweighted, doubled}},
      {dk_rows, "dk_rows", "dk", "beta dAkk k 2^(G_i - G_j)", {lost, negated, undecayed, unweighted}},
      {dk_scores,
       "dk_scores",
       "dk",
       "dAqk^T q 2^(G_i - G_j)",
       {lost, negated, undecayed, unscaled, scaled_twice}},
      {dk_columns, "dk_columns", "dk", "dAkk^T beta k 2^(G_i - G_j)", {lost, negated, undecayed, unweighted}},
      {dAqk, "dAqk", "all that follows", "dAqk", {lost, unscaled, scaled_twice, first_tile, last_tile}},
      {dw, "dw", "all that follows", "dw", {lost, negated, first_tile, last_tile}},
      {dA, "dA", "dAkk", "dA", {unweighted}},
      {dA_v, "dA_v", "dAkk", "dv v^T", {lost, negated, first_tile, last_tile}},
      {dA_w, "dA_w", "dAkk", "dw (k 2^G)^T", {lost, negated, undecayed, first_tile, last_tile}},
      {dAkk, "dAkk", "all that follows", "dAkk", {lost, negated}},
      {dbeta_v, "dbeta_v", "dbeta", "dvb v", {lost, negated, doubled, first_tile, last_tile}},
      {dbeta_w, "dbeta_w", "dbeta", "dkb k 2^G", {lost, negated, undecayed, first_tile, last_tile}},
      {dbeta_rows, "dbeta_rows", "dbeta", "dAkk k k 2^(G_i - G_j)", {lost, negated, weighted}},
      {dG_query, "dG_query", "dg", "q dq of the state", {lost, negated}},
      {dG_key, "dG_key", "dg", "-k dk of the state", {lost, negated}},
      {dG_w, "dG_w", "dg", "beta dkb k 2^G", {lost, negated}},
      {dGn_state,
       "dGn_state",
       "dg",
       "2^Gn h dh of a chunk's last row",
       {lost, negated, undecayed, doubled, first_tile, last_tile}},
      {dGn_keys, "dGn_keys", "dg", "k dk of a chunk's last row", {lost, negated, doubled}},
      {dG_scores, "dG_scores", "dg", "q dqi", {lost, negated}},
      {dG_rows, "dG_rows", "dg", "k beta row", {lost, negated}},
      {dG_columns, "dG_columns", "dg", "-k col", {lost, negated}},
  };
  return rows;
}

std::string meaning_of(const TermRow& row, TermFault change) {
  if (change == lost)
    return row.of == "all that follows" ? fmt::format("{} is zero", row.formula)
                                        : fmt::format("{} lacks the term {}", row.of, row.formula);
  if (change == lost_alone) return fmt::format("{} lacks the term {}, and dg has it", row.of, row.formula);
  return with_fault(fmt::format("in {} the term {}", row.of, row.formula), change);
}

bool has_tiles(const Problem& p) { return p.dimensions().K > 1 && p.dimensions().V > 1; }
bool has_state_gradient(const Problem& p) { return p.state_gradient.has_value(); }
bool has_state_gradients(const Problem& p) { return has_state_gradient(p) && p.sequences().size() > 1; }
bool has_loss(const Problem& p) { return p.output_gradient.has_value(); }
bool has_longer_sequences(const Problem& p) {
  const std::vector<kda::Sequence> all = p.sequences();
  return has_sequences(p) && all.front().length() > 0 && all.back().length() < p.dimensions().T;
}
bool has_rows(const Problem& p) { return p.sequences().size() > 1; }
bool has_more_rows(const Problem& p) { return p.sequences().size() > 2; }
bool has_square_state(const Problem& p) { return p.dimensions().K == p.dimensions().V; }
bool has_bias_layout(const Problem& p) { return has_bias(p) && has_heads(p); }
bool has_bias_of_rows(const Problem& p) { return has_bias(p) && has_sequences(p); }
bool has_amplitudes(const Problem& p) { return has_A_log(p) && has_heads(p); }
bool has_amplitude_of_rows(const Problem& p) { return has_A_log(p) && has_sequences(p); }
bool has_amplitude_of_batch(const Problem& p) { return has_A_log(p) && p.dimensions().B > 1; }
bool has_bias_of_batch(const Problem& p) { return has_bias(p) && p.dimensions().B > 1; }
bool has_amplitude_of_groups(const Problem& p) { return has_A_log(p) && has_groups(p); }
bool has_softplus_bias(const Problem& p) { return has_softplus(p) && p.dt_bias.has_value(); }
bool has_bias_of_bound(const Problem& p) { return has_lower_bound(p) && p.dt_bias.has_value(); }
bool has_sigmoid(const Problem& p) { return p.options.beta_sigmoid; }
bool has_doubled_sigmoid(const Problem& p) { return has_sigmoid(p) && p.options.allow_neg_eigval; }

template <auto field, auto value>
void put(GradientReading& reading) {
  reading.*field = value;
}
template <BackwardFault fault>
void put_fault(GradientReading& reading) {
  reading.fault = fault;
}
template <auto row>
void of_both(GradientReading& reading) {
  reading.query_norm = reading.key_norm = row;
}
template <GroupSum sum>
void of_groups(GradientReading& reading) {
  reading.query_groups = reading.key_groups = sum;
}
template <StateOf which>
void of_all_states(GradientReading& reading) {
  reading.states = which, reading.states_of_all = true;
}
template <auto field, auto value = true>
void of_token(GradientReading& reading) {
  reading.token.emplace().*field = value;
}
template <auto counts>
void of_sums(GradientReading& reading) {
  reading.counts_for_amplitude = reading.counts_for_bias = counts;
}

// dx = a dy - b (dy . y) y
constexpr GradientReading::Norm dropped(double, double) { return {1, 0}; }
constexpr GradientReading::Norm not_projected(double r, double) { return {r, 0}; }
constexpr GradientReading::Norm not_divided(double, double) { return {1, 1}; }
constexpr GradientReading::Norm by_mean(double r, double K) { return {r, r / K}; }
constexpr GradientReading::Norm other_sign(double r, double) { return {r, -r}; }
constexpr GradientReading::Norm along_rows(double r, double) { return {r, 1}; }
constexpr GradientReading::Norm divided_twice(double r, double) { return {r, r * r}; }

double bounded_slope(const Slope& s, double of) { return s.bound * sigmoid(of) * sigmoid(-of); }
/// s (1 - s) in fp32
double slope_in_fp32(const Slope& s) {
  const auto rounded = static_cast<float>(sigmoid(s.A * s.y));
  return s.bound * s.A * static_cast<double>(rounded * (1 - rounded));
}
constexpr double largest_exponent = 88.72;  // that exp has in fp32
double right_slope(const Slope& s) {
  return std::isnan(s.bound) ? -s.A * sigmoid(s.y) : s.A * bounded_slope(s, s.A * s.y);
}
double right_amplitude(const Slope& s) { return std::isnan(s.bound) ? s.gate : s.y * right_slope(s); }

bool is_of_first_row(const Summand& one) { return one.batch == 0; }
bool is_of_first_sequence(const Summand& one) { return one.sequence == 0; }
bool is_of_last_sequence(const Summand& one) { return one.sequence + 1 == one.sequences; }
bool is_of_whole_chunk(const Summand& one) {
  return one.token < one.length / one.chunk_size * one.chunk_size;
}
bool is_of_whole_tile(const Summand& one) {
  constexpr std::size_t rows = 32;
  return one.token < one.length / rows * rows;
}
bool is_of_first_channels(const Summand& one) { return 2 * one.channel < one.channels; }

const std::vector<GradientFault>& other_faults() {
  using enum BackwardFault;
  static const std::vector<GradientFault> rows{
      // q and k.
      {"norm_dropped", "dq and dk are those of the normalised rows", has_norm, of_both<&dropped>},
      {"query_norm_dropped", "dq is that of the normalised rows", has_norm,
       put<&GradientReading::query_norm, &dropped>},
      {"key_norm_dropped", "dk is that of the normalised rows", has_norm,
       put<&GradientReading::key_norm, &dropped>},
      {"norm_not_projected", "dq and dk are divided by the norm and not projected", has_norm,
       of_both<&not_projected>},
      {"query_not_projected", "dq is divided by the norm and not projected", has_norm,
       put<&GradientReading::query_norm, &not_projected>},
      {"key_not_projected", "dk is divided by the norm and not projected", has_norm,
       put<&GradientReading::key_norm, &not_projected>},
      {"norm_not_divided", "dq and dk are projected and not divided by the norm", has_norm,
       of_both<&not_divided>},
      {"query_not_divided", "dq is projected and not divided by the norm", has_norm,
       put<&GradientReading::query_norm, &not_divided>},
      {"key_not_divided", "dk is projected and not divided by the norm", has_norm,
       put<&GradientReading::key_norm, &not_divided>},
      {"norm_by_mean", "the norm of q and k is differentiated with a mean for the sum, as an RMS norm",
       has_norm, of_both<&by_mean>},
      {"norm_sign", "dq and dk have the projection with the other sign", has_norm, of_both<&other_sign>},
      {"norm_along_rows", "dq and dk are projected along the rows, not the normalised ones", has_norm,
       of_both<&along_rows>},
      {"norm_divided_twice", "dq and dk have the projection divided by the norm twice", has_norm,
       of_both<&divided_twice>},
      {"last_of_group", "dq and dk are those of one value head, not the sum over its group", has_groups,
       of_groups<GroupSum::last>},
      {"query_last_of_group", "dq is that of one value head, not the sum over its group", has_groups,
       put<&GradientReading::query_groups, GroupSum::last>},
      {"key_last_of_group", "dk is that of one value head, not the sum over its group", has_groups,
       put<&GradientReading::key_groups, GroupSum::last>},
      {"query_first_of_group", "dq is that of the first value head of its group, not their sum", has_groups,
       put<&GradientReading::query_groups, GroupSum::first>},
      {"key_first_of_group", "dk is that of the first value head of its group, not their sum", has_groups,
       put<&GradientReading::key_groups, GroupSum::first>},
      {"query_interleaved", "dq of head h is summed over value heads h, h + H, ..., not those of its group",
       has_groups, put<&GradientReading::query_groups, GroupSum::interleaved>},
      {"key_interleaved", "dk of head h is summed over value heads h, h + H, ..., not those of its group",
       has_groups, put<&GradientReading::key_groups, GroupSum::interleaved>},
      {"first_of_group_lost", "dq and dk lack the first value head of its group", has_groups,
       of_groups<GroupSum::without_first>},
      {"last_of_group_lost", "dq and dk lack the last value head of its group", has_groups,
       of_groups<GroupSum::without_last>},
      {"mean_of_group", "dq and dk are the mean over a group, not its sum", has_groups,
       of_groups<GroupSum::mean>},
      {"groups_interleaved",
       "dq and dk of head h are summed over value heads h, h + H, ..., not those of its group", has_groups,
       of_groups<GroupSum::interleaved>},
      {"group_sum_in_bf16", "the sums of dq and dk over a group are rounded to bf16", has_groups,
       of_groups<GroupSum::in_bf16>},
      {"unscaled_query", "dq lacks the scale", always, put<&GradientReading::query_scale_power, -1>},
      {"query_scaled_twice", "dq has the scale twice", always, put<&GradientReading::query_scale_power, 1>},
      // In chunks.
      {"inclusive_mask", "dAkk has the diagonal, too", always, put_fault<inclusive_mask>},
      {"masks_inclusive", "dA and dAkk have the diagonal, too", always, put_fault<masks_inclusive>},
      {"not_transposed", "dAkk is A dA A, not A^T dA A^T", always, put_fault<not_transposed>},
      {"one_sided", "dAkk is A^T dA, not A^T dA A^T", always, put_fault<one_sided>},
      {"second_transposed", "dAkk is A dA A^T, not A^T dA A^T", always, put_fault<second_transposed>},
      {"never_transposed", "A stands for A^T in all of dvb, dkb and dAkk", always,
       put_fault<never_transposed>},
      {"value_not_transposed", "dvb is A dv, not A^T dv", always, put_fault<value_not_transposed>},
      {"key_not_transposed", "dkb is A dw, not A^T dw", always, put_fault<key_not_transposed>},
      {"value_unsolved", "dv is that of v_new, without A^T and beta", always, put_fault<value_unsolved>},
      {"write_strength_lost", "dv lacks beta", always, put<&GradientReading::write_strength_lost, true>},
      {"local_masked", "what o gives dv lacks its own token, and so does all that follows from it", always,
       put_fault<local_masked>},
      {"local_not_transposed", "what o gives dv is Aqk do, not Aqk^T do", always,
       put_fault<local_not_transposed>},
      {"value_masked", "dv lacks what o of its own token adds to it", always, put_fault<value_masked>},
      {"erase_lost", "dbeta lacks what the prediction adds to it", always, put_fault<erase_lost>},
      {"rows_unsolved", "dAkk is dA with the other sign, without A^T on both sides", always,
       put_fault<unsolved>},
      {"rows_lost", "dk and dg lack what dAkk gives them by rows", always,
       [](GradientReading& r) { r.term = dk_rows, r.also = dG_rows; }},
      {"key_prediction_lost", "dk lacks what predictions add to it", always, put_fault<key_prediction_lost>},
      {"early_rounding", "the terms of dg are rounded to bf16 before they cancel", always,
       put_fault<early_rounding>},
      {"scores_of_u", "dAqk is made with u, not with v_new", always, put_fault<scores_of_u>},
      {"key_w_lost", "dk and dbeta lack what w gives them, and dg has it", always, put_fault<key_w_lost>},
      {"beta_divided", "dbeta is zero where beta is: it was divided by beta",
       [](const Problem& p) {
         const Tensor& beta = p.beta;
         for (std::size_t i = 0; i < beta.size(); ++i)
           if (beta.value(i) == 0) return !p.options.beta_sigmoid;
         return false;
       },
       put<&GradientReading::divided_by_beta, true>},
      {"tail_decay_lost", "in a shorter last chunk the decay of dk to its end is read from a row behind it",
       has_chunks, put_fault<tail_decay_lost>},
      {"value_without_state", "dv lacks kg dh, and what follows from it has it", always,
       put_fault<value_without_state>},
      {"writes_unerased", "dk of the state is made with u, not with v_new", always,
       put_fault<writes_unerased>},
      // dg.
      {"final_product_lost", "dg lacks what the final state and dht give it", has_state_gradient,
       put_fault<final_product_lost>},
      {"query_products_lost", "dg lacks q dq", always,
       [](GradientReading& r) { r.term = dG_query, r.also = dG_scores; }},
      {"within_lost", "dg lacks what the scores and L of its chunk give it", always, put_fault<within_lost>},
      {"first_token_masked", "dg of the first token is missing", always, put_fault<first_token>},
      {"last_row_of_tile", "a shorter last chunk loses what the decay of the state adds to dg", has_chunks,
       put_fault<last_row_of_tile>},
      {"last_row_first",
       "what the decay of the state adds to dg is in the first row of a chunk, not its last", has_chunks,
       put_fault<last_row_first>},
      {"last_row_of_entering",
       "what the decay of the state adds to dg has the gradient of the state that enters the chunk",
       has_chunks, put_fault<last_row_of_entering>},
      {"gradient_late", "dg is a token late", always, put<&GradientReading::late, true>},
      {"gradient_not_cumulated", "dg lacks its sum to the end of the chunk", has_chunks,
       put_fault<not_cumulated>},
      {"cumulated_late", "the sum of dg to the end of the chunk lacks the token's own", has_chunks,
       put_fault<cumulated_late>},
      {"cumulated_forwards", "dg is summed from the beginning of the chunk, not to its end", has_chunks,
       put_fault<cumulated_forwards>},
      {"cumulated_in_blocks", "dg is summed to the end of its 16 rows, not of the chunk", has_chunks,
       put_fault<cumulated_in_blocks>},
      {"cumulated_in_halves", "dg is summed to the end of its 32 rows, not of the chunk", has_chunks,
       put_fault<cumulated_in_halves>},
      {"cumulated_over_chunks", "dg is summed to the end of the sequence, not of the chunk", has_chunks,
       put_fault<cumulated_over_chunks>},
      {"cumulated_in_bf16", "the sum of dg to the end of the chunk is rounded to bf16", has_chunks,
       put_fault<cumulated_in_bf16>},
      // The gradient of the state.
      {"state_gradient_lost", "dht is not read", has_state_gradient,
       put<&GradientReading::state_gradient, StateGradientOf::nobody>},
      {"last_state_gradient", "dht is read for the last sequence alone", has_state_gradients,
       put<&GradientReading::state_gradient, StateGradientOf::last_alone>},
      {"state_gradient_transposed", "dht is read in the other layout (K and V swapped)",
       [](const Problem& p) { return has_state_gradient(p) && has_square_state(p); },
       put<&GradientReading::state_gradient, StateGradientOf::transposed>},
      {"state_gradient_every_chunk", "dht is added behind every chunk",
       [](const Problem& p) { return has_state_gradient(p) && has_chunks(p); }, put_fault<every_chunk>},
      {"state_gradient_goes_on", "the gradient of the state goes on from the sequence behind",
       [](const Problem& p) { return p.sequences().size() > 1; },
       put<&GradientReading::state_gradient, StateGradientOf::with_next>},
      {"chunks_apart", "the gradient of the state does not reach the chunk before", has_chunks,
       put_fault<chunks_apart>},
      {"tail_carry_lost", "the gradient of the state does not decay through a shorter last chunk", has_chunks,
       put_fault<tail_carry_lost>},
      {"carry_of_next", "the gradient of the state decays by the gates of the chunk behind", has_chunks,
       put_fault<carry_of_next>},
      {"carry_of_first_row", "the gradient of the state decays by the gate of its chunk's first row alone",
       has_chunks, put_fault<carry_of_first_row>},
      {"carry_of_row_before", "the gradient of the state decays by G of its chunk's last row but one",
       has_chunks, put_fault<carry_of_row_before>},
      {"carry_by_mean", "the gradient of the state decays by the mean over channels", has_chunks,
       put_fault<carry_by_mean>},
      {"carry_by_column", "the gradient of the state decays by the gates of its column, not of its row",
       has_square_state, put_fault<carry_by_column>},
      {"gradient_carried_in_bf16", "the gradient of the state is rounded to bf16 before each chunk",
       has_chunks, put_fault<carry_in_bf16>},
      {"first_head_decay", "the gradient of the state decays from chunk to chunk by the gates of head 0",
       has_heads, put<&GradientReading::first_head_decay, true>},
      {"prediction_of_scores", "the gradient of the state has w^T dv_local, not w^T dv", has_chunks,
       put_fault<prediction_of_scores>},
      {"prediction_by_writes", "the gradient of the state has kg^T dv, not w^T dv", has_chunks,
       put_fault<prediction_by_writes>},
      {"states_from_zero", "states are computed again without the initial state", has_initial_state,
       put<&GradientReading::states_from_zero, true>},
      {"state_behind", "dq reads the state that leaves its chunk", has_chunks, put_fault<state_behind>},
      {"state_before", "dq, dw and dg read the state that entered the chunk before", has_chunks,
       put<&GradientReading::states, StateOf::chunk_before>},
      {"states_of_first_sequence",
       "dq, dw and dg read the states of the first sequence: chunks are counted without its offset", has_rows,
       put<&GradientReading::states, StateOf::first_sequence>},
      {"states_of_first_head", "dq, dw and dg read the states of head 0", has_heads,
       put<&GradientReading::states, StateOf::first_head>},
      {"all_states_before", "all that is computed again reads the state that entered the chunk before",
       has_chunks, of_all_states<StateOf::chunk_before>},
      {"all_states_behind", "all that is computed again reads the state that leaves its chunk", has_chunks,
       of_all_states<StateOf::chunk_behind>},
      {"all_states_of_first_chunk", "all that is computed again reads the state that enters the first chunk",
       has_chunks, of_all_states<StateOf::first_chunk>},
      {"all_states_of_first_head", "all that is computed again reads the states of head 0", has_heads,
       of_all_states<StateOf::first_head>},
      {"all_states_of_first_sequence", "all that is computed again reads the states of the first sequence",
       has_rows, of_all_states<StateOf::first_sequence>},
      {"states_behind", "dq, dw and dg read the state that leaves their chunk", has_chunks,
       put<&GradientReading::states, StateOf::chunk_behind>},
      {"states_of_next_sequence", "dq, dw and dg read the states of the next sequence", has_rows,
       put<&GradientReading::states, StateOf::next_sequence>},
      {"all_states_of_next_sequence", "all that is computed again reads the states of the next sequence",
       has_rows, of_all_states<StateOf::next_sequence>},
      {"states_of_sequence_before", "dq, dw and dg read the states of the sequence before", has_more_rows,
       put<&GradientReading::states, StateOf::sequence_before>},
      {"all_states_of_sequence_before", "all that is computed again reads the states of the sequence before",
       has_more_rows, of_all_states<StateOf::sequence_before>},
      {"states_of_mirrored_sequence",
       "dq, dw and dg read the states of the sequence of their number from the end", has_more_rows,
       put<&GradientReading::states, StateOf::mirrored_sequence>},
      {"all_states_of_mirrored_sequence",
       "all that is computed again reads the states of the sequence of its number from the end",
       has_more_rows, of_all_states<StateOf::mirrored_sequence>},
      {"states_between_lost", "states between chunks are not computed again: zeros behind the first chunk",
       has_chunks, of_all_states<StateOf::initial_alone>},
      // Token by token.
      {"query_of_state_before", "dq reads the state before the update of its token", always,
       of_token<&TokenReading::query, StateAt::decayed>},
      {"query_of_undecayed", "dq reads the state before the decay of its token", always,
       of_token<&TokenReading::query, StateAt::before>},
      {"key_of_undecayed", "what predictions add to dk reads the state before its decay", always,
       of_token<&TokenReading::key, StateAt::before>},
      {"write_lost", "dk lacks what the writes of its token give it", always,
       of_token<&TokenReading::write_lost>},
      {"write_unweighted", "what the writes of its token give dk lacks beta", always,
       of_token<&TokenReading::write_unweighted>},
      {"write_without_own", "what the writes of its token give dk lacks what o of that token adds", always,
       of_token<&TokenReading::write, GradientAt::behind>},
      {"never_erased", "the gradient of the state lacks -k dv^T: what a token erases", always,
       of_token<&TokenReading::never_erased>},
      {"gate_unerased", "dg reads the gradient of the state with what its token erases", always,
       of_token<&TokenReading::of_gate, GradientAt::own>},
      {"gate_of_gradient_behind", "dg reads the gradient of the state that comes from the token behind",
       always, of_token<&TokenReading::of_gate, GradientAt::behind>},
      {"gate_of_state_behind", "dg reads the state behind its token", always,
       of_token<&TokenReading::gate, StateAt::behind>},
      {"gate_of_undecayed", "dg reads the state before its decay", always,
       of_token<&TokenReading::gate, StateAt::before>},
      {"gate_of_both_behind", "dg reads the state behind its token, and its gradient there", always,
       [](GradientReading& r) {
         r.token.emplace().gate = StateAt::behind, r.token->of_gate = GradientAt::own;
       }},
      {"state_decays_early", "the gradient of the state decays by the gates of the token before", always,
       of_token<&TokenReading::decay_of, -1>},
      {"state_decays_late", "the gradient of the state decays by the gates of the token behind", always,
       of_token<&TokenReading::decay_of, 1>},
      {"state_gradients_in_bf16", "the gradient of the state is rounded to bf16 at every token", always,
       of_token<&TokenReading::round, &to_bf16>},
      {"state_gradients_in_fp16", "the gradient of the state is rounded to fp16 at every token", always,
       of_token<&TokenReading::round, &to_fp16>},
      {"kept_states_in_bf16", "the states are computed again in bf16, at every token", always,
       of_token<&TokenReading::round_states, &to_bf16>},
      {"kept_states_in_fp16", "the states are computed again in fp16, at every token", always,
       of_token<&TokenReading::round_states, &to_fp16>},
      {"key_raised", "dk of the state has 2^G, not 2^(Gn - G)", has_chunks, put_fault<key_raised>},
      {"row_beta", "dA has the beta of its row, not of its column", always, put_fault<row_beta>},
      {"gradient_before", "dk reads the gradient of the state that enters its chunk", has_chunks,
       put_fault<gradient_before>},
      {"initial_gradient_early", "dinitial_state is the gradient of the state behind the first chunk",
       has_initial_state, put_fault<early_initial>},
      {"initial_gradient_transposed", "dinitial_state is in the other layout (K and V swapped)",
       has_initial_state, put<&GradientReading::initial_transposed, true>},
      {"initial_gradients_reversed", "dinitial_state has the sequences in reverse order", has_initial_states,
       put<&GradientReading::initial_reversed, true>},
      {"initial_gradient_of_first", "dinitial_state is written for sequence 0 alone", has_initial_states,
       put<&GradientReading::initial_of_first, true>},
      {"sequence_late", "sequences behind the first of a row begin one token late", has_sequences,
       put<&GradientReading::bounds, Bounds::late>},
      {"sequence_early", "sequences behind the first of a row begin one token early", has_longer_sequences,
       put<&GradientReading::bounds, Bounds::early>},
      {"sequences_ignored", "all tokens are one sequence, the first", has_sequences,
       put<&GradientReading::bounds, Bounds::ignored>},
      // The gate, and its parameters.
      {"base_two", "dg is that of a gate in powers of two", always,
       [](GradientReading& r) { r.gate_unit = std::numbers::log2e; }},
      {"base_e", "dg is that of a gate in powers of e, and the gate is in powers of two", always,
       [](GradientReading& r) { r.gate_unit = std::numbers::ln2; }},
      {"gate_of_next_head", "the derivative of the gate takes A_log and dt_bias of another head",
       has_amplitudes, put<&GradientReading::gate_of_next_head, true>},
      {"slope_lost", "dg and ddt_bias lack the derivative of the gate", has_gate,
       [](GradientReading& r) {
         r.slope = [](const Slope&) { return 1.0; };
         r.amplitude = &right_amplitude;
       }},
      {"slope_sign", "the derivative of the gate has the other sign", has_gate,
       [](GradientReading& r) { r.slope = [](const Slope& s) { return -right_slope(s); }; }},
      {"slope_without_A", "the derivative of the gate lacks exp(A_log)", has_A_log,
       [](GradientReading& r) { r.slope = [](const Slope& s) { return right_slope(s) / s.A; }; }},
      {"slope_not_raised", "the derivative of the gate has A_log, not exp(A_log)", has_A_log,
       [](GradientReading& r) { r.slope = [](const Slope& s) { return right_slope(s) / s.A * s.A_log; }; }},
      {"slope_of_softplus", "the derivative of the gate is softplus itself, not its derivative", has_softplus,
       [](GradientReading& r) { r.slope = [](const Slope& s) { return s.gate; }; }},
      {"slope_overflows", "the derivative of softplus is 0 where exp(x) leaves fp32", has_softplus,
       [](GradientReading& r) {
         r.slope = [](const Slope& s) { return s.y > largest_exponent ? 0 : right_slope(s); };
       }},
      {"slope_without_sigmoid", "the derivative of the gate is -exp(A_log), without the sigmoid",
       has_softplus, [](GradientReading& r) { r.slope = [](const Slope& s) { return -s.A; }; }},
      {"slope_without_bias", "the derivative of softplus is taken without dt_bias", has_softplus_bias,
       [](GradientReading& r) { r.slope = [](const Slope& s) { return -s.A * sigmoid(s.x); }; }},
      {"bounded_slope_without_bias", "the derivative of the gate is taken without dt_bias", has_bias_of_bound,
       [](GradientReading& r) {
         r.slope = [](const Slope& s) { return s.A * bounded_slope(s, s.A * s.x); };
       }},
      {"sigmoid_lost", "the derivative of a saturated gate is s (1 - s) in fp32", has_lower_bound,
       put<&GradientReading::slope, &slope_in_fp32>},
      {"slope_without_bound", "the derivative of the gate lacks lower_bound", has_lower_bound,
       [](GradientReading& r) { r.slope = [](const Slope& s) { return right_slope(s) / s.bound; }; }},
      {"slope_of_sigmoid", "the derivative of the gate is s, not s (1 - s)", has_lower_bound,
       [](GradientReading& r) {
         r.slope = [](const Slope& s) { return s.A * s.bound * sigmoid(s.A * s.y); };
       }},
      {"slope_at_argument", "the derivative of the gate is taken at x, not at exp(A_log) x", has_bounded_A,
       [](GradientReading& r) { r.slope = [](const Slope& s) { return s.A * bounded_slope(s, s.y); }; }},
      {"slope_of_gate", "the derivative of the gate is g (1 - g), g the log decay", has_lower_bound,
       [](GradientReading& r) { r.slope = [](const Slope& s) { return s.A * s.gate * (1 - s.gate); }; }},
      {"amplitude_not_raised", "dA_log lacks exp(A_log)", has_A_log,
       [](GradientReading& r) { r.amplitude = [](const Slope& s) { return right_amplitude(s) / s.A; }; }},
      {"amplitude_sign", "dA_log has the other sign", has_A_log,
       [](GradientReading& r) { r.amplitude = [](const Slope& s) { return -right_amplitude(s); }; }},
      {"amplitude_of_mean", "dA_log is the mean over channels, not the sum", has_A_log,
       [](GradientReading& r) {
         r.amplitude = [](const Slope& s) { return right_amplitude(s) / s.channels; };
       }},
      {"amplitude_by_slope", "dA_log takes the derivative of softplus for softplus", has_softplus_A,
       [](GradientReading& r) { r.amplitude = [](const Slope& s) { return -s.A * sigmoid(s.y); }; }},
      {"amplitude_of_softplus", "dA_log is the sum of g dg, as of softplus", has_bounded_A,
       [](GradientReading& r) { r.amplitude = [](const Slope& s) { return s.gate; }; }},
      {"amplitude_without_argument", "dA_log lacks the gate's argument", has_bounded_A,
       [](GradientReading& r) { r.amplitude = [](const Slope& s) { return right_slope(s); }; }},
      {"amplitude_without_bias", "dA_log has the gate's argument without dt_bias", has_bias_of_bound,
       [](GradientReading& r) { r.amplitude = [](const Slope& s) { return s.x * right_slope(s); }; }},
      {"amplitude_of_argument", "dA_log is the sum of x dg", has_A_log,
       [](GradientReading& r) { r.amplitude = [](const Slope& s) { return s.y; }; }},
      {"amplitude_of_both", "dA_log is the sum of g dx", has_A_log,
       [](GradientReading& r) { r.amplitude = [](const Slope& s) { return s.gate * right_slope(s); }; }},
      {"amplitude_of_group", "dA_log is summed over a group of value heads", has_amplitude_of_groups,
       put<&GradientReading::amplitude_of_group, true>},
      {"amplitude_of_first_channels", "dA_log is summed over the first half of the channels", has_A_log,
       put<&GradientReading::counts_for_amplitude, &is_of_first_channels>},
      {"first_row_summed", "dA_log is the sum of batch row 0 alone", has_amplitude_of_batch,
       put<&GradientReading::counts_for_amplitude, &is_of_first_row>},
      {"bias_of_first_row", "ddt_bias is the sum of batch row 0 alone", has_bias_of_batch,
       put<&GradientReading::counts_for_bias, &is_of_first_row>},
      {"first_sequence_summed", "dA_log is the sum of the first sequence alone", has_amplitude_of_rows,
       put<&GradientReading::counts_for_amplitude, &is_of_first_sequence>},
      {"bias_of_first_sequence", "ddt_bias is the sum of the first sequence alone", has_bias_of_rows,
       put<&GradientReading::counts_for_bias, &is_of_first_sequence>},
      {"last_sequence_summed", "dA_log is the sum of the last sequence alone", has_amplitude_of_rows,
       put<&GradientReading::counts_for_amplitude, &is_of_last_sequence>},
      {"bias_of_last_sequence", "ddt_bias is the sum of the last sequence alone", has_bias_of_rows,
       put<&GradientReading::counts_for_bias, &is_of_last_sequence>},
      // Behind those of one sum, for a sum that is right has not to stay so.
      {"sums_of_first_row", "dA_log and ddt_bias are the sums of batch row 0 alone", has_bias_of_batch,
       of_sums<&is_of_first_row>},
      {"sums_of_first_sequence", "dA_log and ddt_bias are the sums of the first sequence alone",
       has_bias_of_rows, of_sums<&is_of_first_sequence>},
      {"sums_of_last_sequence", "dA_log and ddt_bias are the sums of the last sequence alone",
       has_bias_of_rows, of_sums<&is_of_last_sequence>},
      {"tail_not_summed", "dA_log and ddt_bias lack the rows of a shorter last chunk", has_gate,
       of_sums<&is_of_whole_chunk>},
      {"tiles_of_32_summed", "dA_log and ddt_bias lack the rows of a shorter last tile of 32", has_gate,
       of_sums<&is_of_whole_tile>},
      {"bias_by_channel", "ddt_bias is in the other layout", has_bias_layout,
       put<&GradientReading::bias_by_channel, true>},
      {"bias_of_heads", "ddt_bias is summed over heads", has_bias_layout,
       put<&GradientReading::bias_of_heads, true>},
      {"bias_without_slope", "ddt_bias lacks the derivative of the gate", has_bias,
       [](GradientReading& r) { r.bias = [](const Slope&) { return 1.0; }; }},
      {"bias_without_sigmoid", "ddt_bias is made with -exp(A_log), without the sigmoid", has_softplus_bias,
       [](GradientReading& r) { r.bias = [](const Slope& s) { return -s.A; }; }},
      {"bias_of_mean", "ddt_bias is divided by the number of channels", has_bias,
       [](GradientReading& r) { r.bias = [](const Slope& s) { return right_slope(s) / s.channels; }; }},
      {"bias_doubled", "ddt_bias is doubled", has_bias,
       [](GradientReading& r) { r.bias = [](const Slope& s) { return 2 * right_slope(s); }; }},
      // beta.
      {"sigmoid_slope_lost", "dbeta lacks the derivative of the sigmoid", has_sigmoid,
       [](GradientReading& r) { r.sigmoid_slope = [](double, double) { return 1.0; }; }},
      {"sigmoid_slope_raw", "the derivative of the sigmoid is x (1 - x), x its argument", has_sigmoid,
       [](GradientReading& r) {
         r.sigmoid_slope = [](double x, double most) { return most * x * (1 - x); };
       }},
      {"sigmoid_slope_not_doubled", "the derivative of the sigmoid lacks the factor 2 of allow_neg_eigval",
       has_doubled_sigmoid,
       [](GradientReading& r) {
         r.sigmoid_slope = [](double x, double) { return sigmoid(x) * sigmoid(-x); };
       }},
      {"sigmoid_slope_of_beta", "the derivative of the sigmoid is beta (1 - beta), beta doubled",
       has_doubled_sigmoid,
       [](GradientReading& r) {
         r.sigmoid_slope = [](double x, double most) { return most * sigmoid(x) * (1 - most * sigmoid(x)); };
       }},
      {"sigmoid_for_slope", "the derivative of the sigmoid is the sigmoid itself", has_sigmoid,
       [](GradientReading& r) { r.sigmoid_slope = [](double x, double most) { return most * sigmoid(x); }; }},
      {"sigmoid_slope_twice", "dbeta has the derivative of the sigmoid twice", has_sigmoid,
       [](GradientReading& r) {
         r.sigmoid_slope = [](double x, double most) {
           return most * sigmoid(x) * sigmoid(-x) * sigmoid(x) * sigmoid(-x);
         };
       }},
  };
  return rows;
}

// Tensors in another order.
using Order = std::size_t (*)(const Problem& problem, std::size_t own, std::size_t count);
std::size_t next_of(const Problem&, std::size_t own, std::size_t count) { return (own + 1) % count; }
std::size_t before_of(const Problem&, std::size_t own, std::size_t count) {
  return (own + count - 1) % count;
}
std::size_t index_0(const Problem&, std::size_t, std::size_t) { return 0; }
std::size_t mirrored_of(const Problem&, std::size_t own, std::size_t count) { return count - 1 - own; }
std::size_t query_of(const Problem& p, std::size_t own, std::size_t) { return own / p.heads_per_group(); }
std::size_t token_before(const Problem&, std::size_t own, std::size_t count) {
  return own > 0 ? own - 1 : count;
}
std::size_t token_behind(const Problem&, std::size_t own, std::size_t) { return own + 1; }
std::size_t without_offset(const Problem& p, std::size_t own, std::size_t) {
  for (const kda::Sequence& s : p.sequences())
    if (s.begin <= own && own < s.end) return own - s.begin;
  return own;
}

/// What kernels take for an index of an axis: a head, a sequence, or a row of the batch.
struct OrderRow {
  std::string_view name, meaning;
  Order from;
  std::size_t least;  ///< so long an axis: in a shorter one it is the same as another, or right
};
constexpr OrderRow order_rows[] = {{"next", "the next {}", next_of, 2},
                                   {"last", "the {} before", before_of, 3},
                                   {"first", "the first {}", index_0, 2},
                                   {"mirrored", "the {} of its number from the end", mirrored_of, 3},
                                   {"query", "{} h / (HV / H)", query_of, 2}};

struct InputRow {
  std::string_view name, what;
  Tensor* (*of)(Problem& problem);
  std::size_t heads;  ///< which axis; axis 0 are sequences or rows of the batch
  bool is_read_forwards = false;
};
template <auto field>
Tensor* optional_one(Problem& p) {
  return p.*field ? &*(p.*field) : nullptr;
}
constexpr InputRow input_rows[] = {
    {"do", "do", optional_one<&Problem::output_gradient>, 2},
    {"state_gradient", "dht", optional_one<&Problem::state_gradient>, 1},
    {"initial", "the initial state, from which states are computed again,",
     optional_one<&Problem::initial_state>, 1},
    {"query", "the backward pass is one where q", [](Problem& p) { return &p.q; }, 2, true},
    {"key", "the backward pass is one where k", [](Problem& p) { return &p.k; }, 2, true},
    {"value", "the backward pass is one where v", [](Problem& p) { return &p.v; }, 2, true},
    {"gate", "the backward pass is one where g", [](Problem& p) { return &p.g; }, 2, true},
    {"beta", "the backward pass is one where beta", [](Problem& p) { return &p.beta; }, 2, true}};

/// Whether no fault of inputs (faults.hpp) says it, which a backward pass is looked at for as well.
bool is_new(const InputRow& input, bool is_of_heads, Order from) {
  if (!input.is_read_forwards) return true;
  const bool is_of_keys = input.name == "query" || input.name == "key";
  if (!is_of_heads) return from != &index_0;
  return is_of_keys ? from != &query_of : from == &mirrored_of || (from == &index_0 && input.name != "gate");
}

void add_orders(std::vector<GradientFault>& all) {
  for (const InputRow& input : input_rows)
    for (const std::size_t axis : {input.heads, std::size_t{0}})
      for (const OrderRow& row : order_rows) {
        const bool is_of_heads = axis > 0, is_of_groups = row.from == &query_of;
        if ((is_of_groups && !is_of_heads) || !is_new(input, is_of_heads, row.from)) continue;
        const std::string_view unit = is_of_heads ? "head" : input.heads == 1 ? "sequence" : "batch_row";
        const auto applies = [=](const Problem& p) {
          const Tensor* const tensor = input.of(const_cast<Problem&>(p));
          return tensor != nullptr && tensor->shape()[axis] >= row.least &&
                 (!is_of_groups || (has_groups(p) && tensor->shape()[axis] == p.dimensions().HV));
        };
        all.push_back(
            {fmt::format("{}_of_{}_{}", input.name, row.name, unit),
             fmt::format("{} is that of {}", input.what,
                         fmt::format(fmt::runtime(row.meaning), unit == "batch_row" ? "batch row" : unit)),
             applies,
             nullptr,
             Term::none,
             TermFault::lost,
             {input.of, axis, row.from}});
      }
  for (const InputRow& input : input_rows) {
    const bool is_state = input.heads == 1;
    const auto add = [&](std::size_t axis, bool is_stored, std::string_view name, std::string_view meaning) {
      const auto applies = [=](const Problem& p) {
        const Tensor* const tensor = input.of(const_cast<Problem&>(p));
        return tensor != nullptr && tensor->shape()[axis] > 1 && tensor->shape()[axis + 1] > 1;
      };
      all.push_back({fmt::format("{}_{}", input.name, name),
                     fmt::format("{} is {}", input.what, meaning),
                     applies,
                     nullptr,
                     Term::none,
                     TermFault::lost,
                     {input.of, axis, nullptr, false, is_stored}});
    };
    if (is_state) {
      add(0, false, "by_head", "read as [HV][N], not [N][HV]");
      if (input.name == "initial") add(2, false, "transposed", "read in the other layout (K and V swapped)");
      continue;
    }
    add(1, false, "as_heads_first", "read as [B,heads,T,width]");
    add(1, true, "stored_heads_first", "laid out as [B,heads,T,width]");
    add(0, false, "as_tokens_first", "read as [T,B,heads,width]");
    add(0, true, "stored_tokens_first", "laid out as [T,B,heads,width]");
  }
  const struct {
    std::string_view name, meaning;
    Order from;
    bool (*applies)(const Problem& p);
  } of_tokens[] = {{"do_late", "do is that of the token before", token_before, has_loss},
                   {"do_early", "do is that of the token behind", token_behind, has_loss},
                   {"do_without_offset", "do is read without the offset of its sequence", without_offset,
                    [](const Problem& p) { return has_loss(p) && has_sequences(p); }}};
  for (const auto& row : of_tokens)
    all.push_back({std::string(row.name),
                   std::string(row.meaning),
                   row.applies,
                   nullptr,
                   Term::none,
                   TermFault::lost,
                   {input_rows[0].of, 1, row.from, true}});
}

}  // namespace

GradientReading GradientFault::reading() const {
  GradientReading reading;
  reading.term = term, reading.change = of_term, reading.order = order;
  if (change != nullptr) change(reading);
  return reading;
}

std::span<const GradientFault> gradient_faults() {
  static const std::vector<GradientFault> rows = [] {
    std::vector<GradientFault> all = other_faults();
    for (const TermRow& row : term_rows())
      for (const TermFault change : row.changes)
        all.push_back({fmt::format("{}_{}", row.name, name_of(change)), meaning_of(row, change),
                       change == first_tile || change == last_tile ? has_tiles : always, nullptr, row.term,
                       change});
    add_orders(all);
    return all;
  }();
  return rows;
}

}  // namespace kda_check::hypotheses
