// A problem as some kernel may read it, rightly or wrongly, and what such a kernel would answer: the
// recurrence of docs/kda.md, "Recurrent forward", in fp64, one token after the other, written to be read. It
// shares no code with the variants.
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

#include "kda/variants/variants.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::hypotheses {

/// What becomes of the last token of a sequence.
enum class LastToken : unsigned char {
  computed,
  dropped,    ///< neither read nor written: its row of o is zero
  unwritten,  ///< its row of o is zero; the state is right
};

/// Where beta is, in w = beta (v - p), p the prediction.
enum class BetaOn : unsigned char { both, value, prediction, value_alone };

/// Where epsilon is, in x / sqrt(sum of x^2 + epsilon).
enum class Epsilon : unsigned char { inside, missing, outside, least, of_mean };

double unchanged(double x);
double sigmoid(double x);
double softplus(double x);
double to_bf16(double x);
double to_fp16(double x);

/// The defaults are the right way; faults (faults.hpp) change one thing.
struct Interpretation {
  using Function = double (*)(double);

  explicit Interpretation(const kda::Problem& problem)
      : key_width(problem.dimensions().K), value_width(problem.dimensions().V), options(problem.options) {
    options.scale = problem.scale();
  }

  std::size_t key_width, value_width;  ///< K and V
  kda::Options options;                ///< scale, gate, norm, sigmoid as this kernel takes them
  bool A_log = true;                   ///< false: as if the problem had none
  bool dt_bias = true;                 ///< likewise
  bool A_log_raised = true;            ///< false: A_log for exp(A_log)
  bool bias_by_channel = false;        ///< dt_bias is read as [K][HV]
  bool clamped_softplus = false;       ///< gate := max(lower_bound, -exp(A_log) softplus(g + dt_bias))
  double gate_factor = 1;              ///< multiplies the log decay
  Function decay =
      +[](double x) { return numeric::exp(x); };  ///< from the log decay to what multiplies the state
  std::ptrdiff_t gate_delay = 0;        ///< token t decays by the gate of token t - delay; by 1 outside
  std::ptrdiff_t beta_delay = 0;        ///< likewise; 0 outside
  bool gate_mean = false;               ///< one gate for all channels: the mean of the logs
  bool gate_of_first_head = false;      ///< for all heads
  bool decays_after_update = false;     ///< S := decay (S + k w^T), read before it
  bool predict_before_decay = false;    ///< e = v - S^T k with the state of the token before
  bool prediction_misses_last = false;  ///< ... but for a chunk's first row without what that token wrote
  bool prediction_has_own = false;      ///< w = beta (v - p - k^T k w): with what the token itself writes
  bool output_misses_own = false;       ///< o reads the state before its token writes
  double beta_factor = 1;
  bool beta_squared = false;   ///< in the update as in the prediction
  bool beta_on_value = false;  ///< v := beta v, before all else
  bool beta_one = false;       ///< beta is not applied
  bool sigmoid_twice = false;  ///< of beta
  BetaOn beta_on = BetaOn::both;
  Epsilon epsilon = Epsilon::inside;
  double output_factor = 1;
  bool heads_interleaved = false;  ///< value head h reads query head h mod H, not h / (HV / H)
  bool first_query_head = false;   ///< all value heads read query head 0
  bool query_key_swapped = false;  ///< o reads along k, the state is written along q
  bool initial_state = true;       ///< false: zeros
  bool final_state = true;         ///< false: zeros are stored
  bool initial_state_transposed = false, final_state_transposed = false;  ///< in the other layout
  bool goes_on = false;  ///< a sequence starts from where the one before ended, whatever its initial state
  LastToken last_token = LastToken::computed;
  std::optional<std::size_t> lost_write;  ///< the token whose update of the state is lost
  std::optional<std::size_t> lost_decay;  ///< the token at which the state does not decay
  std::optional<std::size_t> stale_row;   ///< the token whose row of o is that of the one before
  std::optional<std::size_t> lost_state;  ///< the token that reads zeros for the state before it
  // Roundings.
  Function round_beta = &unchanged, round_decay = &unchanged, round_residual = &unchanged,
           round_initial = &unchanged,  ///< the initial state
      round_state = &unchanged,         ///< as o reads it
      round_stored = &unchanged;        ///< as the next token reads it
  // Of a kernel in chunks of so many rows.
  std::size_t chunk = 64;
  bool loses_states = false;       ///< each chunk starts from zeros
  bool transposed_states = false;  ///< o reads the state before its chunk in the other layout
  bool stale_tail = false;         ///< a shorter last chunk decays the state as the chunk before did
  bool stale_rows = false;         ///< ... and adds what the chunk before wrote in the rows that it lacks
  bool carries_undecayed = false;  ///< a chunk adds its writes to the state before it, which does not decay
  bool writes_undecayed = false;   ///< ... its writes as they are, without their decay to the chunk's end
  Function round_carried = &unchanged, round_sums = &unchanged;  ///< states between chunks; sums of gates
};

/// Tokens [begin, end) of a sequence, in a head.
struct Excerpt {
  kda::Sequence sequence;
  std::size_t begin = 0, end = 0;
  std::size_t head = 0;
  std::vector<double> start = {};  ///< [K][V], the state before `begin`; empty: the initial state
};

struct ExcerptAnswer {
  std::vector<double> o;      ///< [tokens][V]
  std::vector<double> state;  ///< [K][V], after the last token
};

ExcerptAnswer answer_of(const kda::Problem& problem, const Interpretation& reading, const Excerpt& excerpt);
/// Of all heads of all sequences, in fp64.
kda::Answer answer_of(const kda::Problem& problem, const Interpretation& reading);

/// Where element (k, v) of a state lies in its tensor.
std::size_t state_element(const kda::Dimensions& dimensions, bool v_first, std::size_t sequence,
                          std::size_t head, std::size_t k, std::size_t v);

}  // namespace kda_check::hypotheses
