// The backward pass of the chunk form once more, in fp64 loops written to be read, with one thing wrong if
// wanted: what wrong gradients are named by (docs/explain.md) and those of selftest are made of
// (docs/developing.md). Shares no code with the variants. Formulas and names: docs/kda.md, "Chunk backward".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hypotheses/naming/interpretation.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::hypotheses {

namespace plain {
struct ChunkedHead;
struct HeadGradient;
}  // namespace plain

/// A term of one of the sums of the backward pass.
enum class Term : std::uint8_t {
  none,
  dv_scores,      ///< Aqk^T do
  dv_state,       ///< kg dh
  dh_carry,       ///< 2^Gn dh, of the chunk before
  dh_query,       ///< scale qg^T do
  dh_prediction,  ///< w^T dv
  dq_state,       ///< scale 2^G (do h^T)
  dq_scores,      ///< dqi
  dk_state,       ///< 2^(Gn - G) (v_new dh^T)
  dk_w,           ///< beta 2^G dkb
  dk_rows,        ///< beta row
  dk_scores,      ///< of col, that of dAqk
  dk_columns,     ///< of col, that of dAkk
  dAqk,           ///< scale tril(do v_new^T)
  dw,             ///< -dv h^T
  dA,             ///< both of what follows
  dA_v,           ///< dv v^T
  dA_w,           ///< dw (k 2^G)^T
  dAkk,
  dbeta_v,     ///< rows of dvb v
  dbeta_w,     ///< rows of dkb k 2^G
  dbeta_rows,  ///< row . k
  dG_query,    ///< q dq, of the state
  dG_key,      ///< k dk, of the state
  dG_w,        ///< beta dkb k 2^G
  dGn_state,   ///< 2^Gn rows of h dh
  dGn_keys,    ///< sum_i k_i dk_i
  dG_scores,   ///< q dqi
  dG_rows,     ///< k beta row
  dG_columns,  ///< k col
};

/// What a kernel gets wrong of the chunks that is no single term.
enum class BackwardFault : std::uint8_t {
  none,
  inclusive_mask,         ///< dAkk on and below the diagonal
  masks_inclusive,        ///< ... and dA
  not_transposed,         ///< A dA A for A^T dA A^T
  one_sided,              ///< A^T dA
  second_transposed,      ///< A dA A^T
  unsolved,               ///< dA
  never_transposed,       ///< A for A^T everywhere
  value_not_transposed,   ///< dvb = A dv
  key_not_transposed,     ///< dkb = A dw
  value_unsolved,         ///< dv is that of v_new
  erase_lost,             ///< dbeta of v alone, without that of the prediction
  key_prediction_lost,    ///< dk without what predictions add to it
  early_rounding,         ///< q dq and k dk in bf16 before one is taken from the other
  within_lost,            ///< dg without q dqi + k (beta row - col)
  first_token,            ///< dg of the first token is zero
  last_row_of_tile,       ///< dG_n at row C - 1 even where a chunk is shorter
  last_row_first,         ///< dG_n at row 0
  last_row_of_entering,   ///< dG_n has the gradient of the state that enters the chunk
  not_cumulated,          ///< dg without its sum to the end of the chunk
  cumulated_late,         ///< ... without the token's own
  cumulated_forwards,     ///< ... from the beginning of the chunk
  cumulated_in_blocks,    ///< ... to the end of the block of 16
  cumulated_in_halves,    ///< ... of the block of 32
  cumulated_over_chunks,  ///< ... to the end of the sequence
  cumulated_in_bf16,      ///< ... rounded at every token
  tail_decay_lost,        ///< dk of a shorter last chunk: G_n is read from a row behind it, where it is 0
  tail_carry_lost,        ///< ... 2^Gn of the carried gradient
  carry_of_next,          ///< the gradient of the state decays by G_n of the chunk behind
  carry_of_first_row,     ///< ... of the first row of its chunk
  carry_of_row_before,    ///< ... of the last row but one
  carry_by_mean,          ///< ... by the mean over channels
  carry_by_column,        ///< ... by exp(G_n) of its column, not of its row
  carry_in_bf16,          ///< the gradient of the state is rounded before each chunk
  chunks_apart,           ///< the gradient of the state does not reach the chunk before
  prediction_of_scores,   ///< w^T dv_local for w^T dv
  prediction_by_writes,   ///< kg^T dv for w^T dv
  scores_of_u,            ///< dAqk = do u^T
  key_w_lost,             ///< dk and dbeta lack what w gives them
  value_without_state,    ///< dv lacks kg dh, and what follows from it has it
  final_product_lost,     ///< dg lacks S dht of the last state
  state_behind,           ///< dq reads the state that leaves the chunk
  key_raised,             ///< dk of the state has 2^G for 2^(Gn - G)
  row_beta,               ///< dA has the beta of its row
  gradient_before,        ///< dk reads the gradient of the state that enters the chunk
  writes_unerased,        ///< dk reads u for v_new
  every_chunk,            ///< dht is added behind every chunk
  early_initial,          ///< dinitial_state is the gradient of the state behind the first chunk
  local_not_transposed,   ///< dv_local = Aqk do
  local_masked,           ///< what o gives dv lacks its own token, and all that follows from it
  value_masked,           ///< ... dv alone
};

/// Of dht, which one is read.
enum class StateGradientOf : std::uint8_t { own, nobody, last_alone, with_next, transposed };
/// Of value heads, which count for the gradients of their query head.
enum class GroupSum : std::uint8_t {
  all,
  first,
  last,
  without_first,
  without_last,
  mean,
  interleaved,
  in_bf16
};

/// Where a gate or the sigmoid of beta is differentiated. y = x + bias, A = exp(A_log).
struct Slope {
  double x, y, A, A_log, bound, gate;  ///< bound: NaN of softplus; gate: the log decay
  double channels;
};
/// Whether what a token has counts in the sum of a parameter.
struct Summand {
  std::size_t batch, sequence, sequences, token, length, chunk_size, channel, channels;
};

/// A tensor of the problem that the backward pass reads in another order.
struct OtherOrder {
  tensor::Tensor* (*of)(kda::Problem& problem) = nullptr;  ///< null: in its own
  std::size_t axis = 0;
  /// Where an index of the axis is read; beyond the axis are zeros. None: the tensor is read as if the axis
  /// and the next one were exchanged.
  std::size_t (*from)(const kda::Problem& problem, std::size_t own, std::size_t count) = nullptr;
  bool is_of_tokens = false;  ///< the axis
  bool is_stored = false;     ///< the axes are exchanged where it is stored, and read as if they were not
};
/// Of the states that enter chunks, which one is read.
enum class StateOf : std::uint8_t {
  own,
  chunk_before,
  chunk_behind,
  first_chunk,
  first_head,
  first_sequence,  ///< and its chunk of the same number
  next_sequence,   ///< likewise
  sequence_before,
  mirrored_sequence,
  initial_alone,  ///< zeros but for the first chunk
};
/// Where it takes the sequences of a packed row to begin: those behind the first a token late or early; all
/// tokens for one sequence.
enum class Bounds : std::uint8_t { own, late, early, ignored };

/// Of the state at a token: behind it, before its update, before its decay.
enum class StateAt : std::uint8_t { behind, decayed, before };
/// Of the gradient of the state at a token: of what is behind it alone, with what its own row of o adds, and
/// without what it erases.
enum class GradientAt : std::uint8_t { behind, own, erased };
/// What gradients are made of token by token (docs/kda.md, "Backward").
struct TokenReading {
  StateAt query = StateAt::behind, key = StateAt::decayed, gate = StateAt::decayed;
  GradientAt write = GradientAt::own, of_gate = GradientAt::erased;
  bool write_lost = false;                      ///< dk lacks D (beta e)
  bool write_unweighted = false;                ///< ... has D e
  bool never_erased = false;                    ///< the gradient of the state keeps what the token erases
  std::ptrdiff_t decay_of = 0;                  ///< it decays by the gates of the token so many further on
  double (*round)(double) = &unchanged;         ///< it, at every token
  double (*round_states)(double) = &unchanged;  ///< the states that were kept
};

/// A backward pass as some kernel may read it; the defaults are the right way, faults change one thing.
struct GradientReading {
  Term term = Term::none;
  Term also = Term::none;  ///< is wrong likewise
  TermFault change = TermFault::lost;
  BackwardFault fault = BackwardFault::none;
  std::optional<std::size_t> only_chunk{};  ///< of each sequence, that alone has the term or the fault
  bool states_from_zero = false;            ///< states are computed again without the initial state
  bool first_head_decay = false;            ///< the gradient of the state decays by the gates of head 0
  StateGradientOf state_gradient = StateGradientOf::own;
  OtherOrder order{};
  StateOf states = StateOf::own;
  bool states_of_all = false;  ///< v_new is made with these states, too
  Bounds bounds = Bounds::own;
  std::optional<TokenReading> token{};
  std::optional<double> largest_loss{}, largest_state_gradient{};  ///< do, dht are held within +- that
  const Interpretation* misread = nullptr;                         ///< what the chunks are computed from
  const plain::Site* site = nullptr;                               ///< a matrix, and what becomes of it
  const plain::Move* move = nullptr;
  const std::vector<plain::Matrix>* beside = nullptr;  ///< what another head has there
  bool is_of_chunks() const {
    return move != nullptr || misread != nullptr || term != Term::none || fault != BackwardFault::none ||
           states_from_zero || first_head_decay || state_gradient != StateGradientOf::own ||
           order.of != nullptr || states != StateOf::own || bounds != Bounds::own || token.has_value() ||
           largest_loss || largest_state_gradient;
  }
  bool is_of_other_sequence() const {
    return states >= StateOf::first_sequence && states <= StateOf::mirrored_sequence;
  }
  /// It cannot be seen in one head of a sequence.
  bool is_of_others() const {
    return first_head_decay || gate_of_next_head || bounds != Bounds::own || states == StateOf::first_head ||
           is_of_other_sequence() || (order.of != nullptr && !order.is_of_tokens);
  }

  int query_scale_power = 0;         ///< dq has the scale so many times more: -1, 0, 1
  bool write_strength_lost = false;  ///< dv without beta
  bool divided_by_beta = false;      ///< dbeta is zero where beta is
  bool late = false;                 ///< dg a token late
  GroupSum query_groups = GroupSum::all, key_groups = GroupSum::all;
  /// dx = a dy - b (dy . y) y, from r = 1 / |x|; right: both are r.
  struct Norm {
    double a, b;
  };
  Norm (*query_norm)(double r, double K) = nullptr;
  Norm (*key_norm)(double r, double K) = nullptr;
  bool gate_of_next_head = false;           ///< A_log and dt_bias of another head, in the gate's derivative
  double gate_unit = 1;                     ///< multiplies dg before the gate
  double (*slope)(const Slope&) = nullptr;  ///< d gate / d x
  double (*amplitude)(const Slope&) = nullptr;  ///< d gate / d A_log; else from the slope as it is
  double (*bias)(const Slope&) = nullptr;       ///< d gate / d dt_bias; else as x
  double (*sigmoid_slope)(double x, double most) = nullptr;  ///< d beta / d x, beta = most sigmoid(x)
  bool (*counts_for_amplitude)(const Summand&) = nullptr;
  bool (*counts_for_bias)(const Summand&) = nullptr;
  bool amplitude_of_group = false, bias_of_heads = false;  ///< summed over heads, too
  bool bias_by_channel = false;                            ///< ddt_bias as [K][HV]
  bool initial_transposed = false, initial_reversed = false, initial_of_first = false;
};

/// A row of the list of faults of gradients.
struct GradientFault {
  std::string name, meaning;  ///< goes on after "as if"
  /// False where it would change nothing.
  std::function<bool(const kda::Problem& problem)> applies;
  void (*change)(GradientReading& reading) = nullptr;  ///< none: of a term, or of an order
  Term term = Term::none;
  TermFault of_term = TermFault::lost;
  OtherOrder order{};

  GradientReading reading() const;
};
std::span<const GradientFault> gradient_faults();

/// Gradients of a problem, rightly and wrongly. The problem must stay.
class BackwardReference {
 public:
  /// What it can differentiate: a decay for each channel, beta for each token.
  static bool can_differentiate(const kda::Problem& problem);

  BackwardReference(const kda::Problem& problem, std::size_t chunk_size);
  ~BackwardReference();
  /// In fp64, stored in the formats of a run in `dtype`. On one thread; from several at once.
  kda::GradientTensors gradients(const GradientReading& reading, numeric::DType dtype) const;

 private:
  friend class BackwardRun;
  const kda::Problem& problem_;
  const std::size_t chunk_size_;
  std::vector<plain::ChunkedHead> heads_;   ///< [sequence][head]
  std::vector<plain::HeadGradient> right_;  ///< likewise, of chunks
};

}  // namespace kda_check::hypotheses
