// What a problem has that a fault can be about.
#pragma once

#include "kda/problem/problem.hpp"

namespace kda_check::hypotheses {

inline bool always(const kda::Problem&) { return true; }
inline bool has_initial_state(const kda::Problem& p) { return p.initial_state.has_value(); }
inline bool has_initial_states(const kda::Problem& p) {
  return has_initial_state(p) && p.sequences().size() > 1;
}
inline bool has_gate(const kda::Problem& p) { return p.options.gate != kda::Gate::none; }
inline bool has_softplus(const kda::Problem& p) { return p.options.gate == kda::Gate::softplus; }
inline bool has_lower_bound(const kda::Problem& p) { return p.options.gate == kda::Gate::lower_bound; }
inline bool has_A_log(const kda::Problem& p) { return has_gate(p) && p.A_log.has_value(); }
inline bool has_softplus_A(const kda::Problem& p) { return has_softplus(p) && p.A_log.has_value(); }
inline bool has_bounded_A(const kda::Problem& p) { return has_lower_bound(p) && p.A_log.has_value(); }
inline bool has_bias(const kda::Problem& p) { return has_gate(p) && p.dt_bias.has_value(); }
inline bool has_heads(const kda::Problem& p) { return p.dimensions().HV > 1; }
inline bool has_groups(const kda::Problem& p) { return p.dimensions().HV > p.dimensions().H; }
inline bool has_norm(const kda::Problem& p) { return p.options.qk_l2norm; }
inline bool has_beta(const kda::Problem& p) { return !p.beta.empty(); }
inline bool has_chunks(const kda::Problem& p) { return p.dimensions().T > 16; }
inline bool has_chunk_form(const kda::Problem& p) {
  return has_chunks(p) && p.dimensions().strength == kda::Strength::head;
}
inline bool has_channels(const kda::Problem& p) { return p.dimensions().K > 16; }
inline bool has_sequences(const kda::Problem& p) { return p.sequences().size() > p.dimensions().B; }

}  // namespace kda_check::hypotheses
