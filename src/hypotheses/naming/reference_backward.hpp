// The backward pass of the chunk form once more, in fp64 loops written to be read, with bugs to switch on:
// what wrong gradients are named by (docs/faults.md) and those of selftest are made of (docs/selftest.md).
// Shares no code with the variants. Formulas: docs/kda.md, "Chunk backward".
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kda/variants/variants.hpp"

namespace kda_check::hypotheses {

/// What a kernel gets wrong; one at a time.
enum class BackwardFault : std::uint8_t {
  none,
  norm_dropped,          ///< dq and dk of the normalised rows
  norm_not_projected,    ///< ... divided by the norm, but not orthogonal to the row
  gate_of_next_head,     ///< A_log and dt_bias of another head, in the gate's derivative
  inclusive_mask,        ///< dAkk on and below the diagonal
  first_token,           ///< dg of the first token is zero
  unscaled_scores,       ///< dAqk without scale
  not_transposed,        ///< A dA A for A^T dA A^T
  last_of_group,         ///< dq and dk of the last value head, not the sum over a group
  bias_by_channel,       ///< ddt_bias as [K][HV]
  amplitude_not_raised,  ///< dA_log without its exp(A_log)
  base_two,              ///< dg of the gate's base-2 logarithm
  early_rounding,        ///< q dq and k dk in bf16 before one is taken from the other
  sigmoid_lost,          ///< s (1 - s) in fp32 for the derivative of a bounded gate
  state_gradient_lost,   ///< dht is not read
  last_row_of_tile,      ///< what the state's decay adds to dg, at row C - 1 even where a chunk is shorter
  erase_lost,            ///< dbeta of v alone, without that of the prediction
  slope_lost,            ///< dg and ddt_bias of the log decay, not of the gate's argument
  amplitude_by_slope,    ///< dA_log with the derivative of softplus for softplus
  amplitude_sign,        ///< dA_log with the other sign
  unscaled_query,        ///< dq without scale
  write_strength_lost,   ///< dv without beta
  chunks_apart,          ///< the gradient of the state does not reach the chunk before
  late,                  ///< dg a token late
  tail_decay_lost,       ///< dk of a shorter last chunk: G_n is read from a row behind it, where it is 0
  sigmoid_slope_lost,    ///< dbeta of sigmoid(beta)
  tail_not_summed,       ///< dA_log and ddt_bias without the rows of a shorter last chunk
  first_row_summed,      ///< dA_log of batch row 0 alone
  early_initial,         ///< dinitial_state is the gradient of the state behind the first chunk
  local_masked,          ///< what o gives dv lacks its own token, and all that follows from it
  value_masked,          ///< ... dv alone
  states_from_zero,      ///< states are computed again without the initial state
  first_state_gradient,  ///< dht of sequence 0 for all
  not_cumulated,         ///< dg without its sum to the end of the chunk
  first_head_decay,      ///< the gradient of the state decays by the gates of head 0
  key_prediction_lost,   ///< dk without what predictions add to it
  query_state_lost,      ///< dq without what the state before the chunk adds to it
};

/// A row of the list of faults of gradients.
struct GradientFault {
  std::string_view name, meaning;  ///< goes on after "as if"
  BackwardFault fault;
  bool needs_more = false;  ///< than the problem of the selftest has: softplus, several sequences
};
std::span<const GradientFault> gradient_faults();

/// What reference_backward can differentiate: a decay for each channel, beta for each token.
bool has_reference_backward(const kda::Problem& problem);

/// In fp64, stored in the formats of the run; chunks of options.chunk_size. On one thread.
kda::GradientTensors reference_backward(const kda::Problem& problem, const kda::RunOptions& options,
                                        BackwardFault fault = BackwardFault::none);

}  // namespace kda_check::hypotheses
