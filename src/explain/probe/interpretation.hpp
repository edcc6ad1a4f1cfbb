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

namespace kda_check::explain {

/// What becomes of the last token of a sequence.
enum class LastToken : unsigned char {
  computed,
  dropped,    ///< neither read nor written: its row of o is zero
  stale,      ///< its row of o is that of the token before
  unwritten,  ///< its row of o is zero; the state is right
};

/// The defaults are the right way; conventions (conventions.hpp) change one thing.
struct Interpretation {
  explicit Interpretation(const kda::Problem& problem)
      : key_width(problem.dimensions().K), value_width(problem.dimensions().V), options(problem.options) {
    options.scale = problem.scale();
  }

  std::size_t key_width, value_width;  ///< K and V
  kda::Options options;                ///< scale, gate, norm, sigmoid as this kernel takes them
  bool A_log = true, dt_bias = true;   ///< false: as if the problem had none
  bool clamped_softplus = false;       ///< gate := max(lower_bound, -exp(A_log) softplus(g + dt_bias))
  double gate_factor = 1;              ///< multiplies the log decay
  double (*decay)(double) = +[](double x) {
    return numeric::exp(x);
  };                                  ///< from the log decay to what multiplies the state
  std::ptrdiff_t gate_delay = 0;      ///< token t decays by the gate of token t - delay; by 1 outside
  bool gate_mean = false;             ///< one gate for all channels: the mean of the logs
  bool predict_before_decay = false;  ///< e = v - S^T k with the state of the token before
  double beta_factor = 1;
  bool beta_squared = false;   ///< in the update as in the prediction
  bool beta_on_value = false;  ///< v := beta v, before all else
  bool beta_one = false;       ///< beta is not applied
  double output_factor = 1;
  bool heads_interleaved = false;  ///< value head h reads query head h mod H, not h / (HV / H)
  bool initial_state = true;       ///< false: zeros
  bool initial_state_transposed = false, final_state_transposed = false;  ///< in the other layout
  LastToken last_token = LastToken::computed;
  std::optional<std::size_t> lost_write;  ///< the token whose update of the state is lost
};

/// Part of a head: tokens [begin, end) of a sequence, V lanes [first_lane, first_lane + lanes).
struct Excerpt {
  kda::Sequence sequence;
  std::size_t begin = 0, end = 0;  ///< within the sequence's tokens
  std::size_t head = 0, first_lane = 0, lanes = 0;
  std::vector<double> start;  ///< [K][lanes], the state before `begin`; empty: the initial state
};

struct ExcerptAnswer {
  std::vector<double> o;      ///< [tokens][lanes]
  std::vector<double> state;  ///< [K][lanes], after the last token
};

ExcerptAnswer answer_of(const kda::Problem& problem, const Interpretation& reading, const Excerpt& excerpt);
/// Of all heads of all sequences, in fp64.
kda::Answer answer_of(const kda::Problem& problem, const Interpretation& reading);

/// Where element (k, v) of a state lies in its tensor.
std::size_t state_element(const kda::Dimensions& dimensions, bool v_first, std::size_t sequence,
                          std::size_t head, std::size_t k, std::size_t v);

}  // namespace kda_check::explain
