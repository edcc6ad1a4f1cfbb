// A problem as some kernel may read it, rightly or wrongly, and what such a kernel would answer: the
// recurrence of docs/kda.md, "Recurrent forward", in fp64, one token after the other, written to be read. It
// shares no code with the variants.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "hypotheses/naming/input_layouts.hpp"
#include "kda/variants/variants.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::hypotheses {

namespace plain {
struct Chunk;
struct Move;
class Matrix;
struct Site;
}  // namespace plain

/// What becomes of the last token of a sequence.
enum class LastToken : unsigned char {
  computed,
  dropped,    ///< neither read nor written: its row of o is zero
  unwritten,  ///< its row of o is zero; the state is right
};

/// What is handed back for the state behind the last token.
enum class FinalState : std::uint8_t {
  right,
  zero,
  initial,           ///< the initial state
  early,             ///< the state behind another token
  decayed_again,     ///< by the gates of the last token
  initial_again,     ///< a later part of the sequence starts from the state before it and the initial state
  padding_decays,    ///< rows that the last chunk lacks decay it, by the gate of zeros
  tail_lost,         ///< it lacks a shorter last chunk
  tail_decay_stale,  ///< a shorter last chunk decays it as the chunk before did
  tail_end_lost,     ///< a shorter last chunk reads G_n from behind it, where it is 0
  rows_behind,  ///< rows behind the end of a shorter last chunk are those of the next sequence, undecayed
  stale_rows,   ///< a shorter last chunk adds what the chunk before wrote in the rows that it lacks
};

/// Where beta is, in w = beta (v - p), p the prediction.
enum class BetaOn : unsigned char { both, value, prediction, value_alone };

/// What is wrong with a term of a sum, of the chunk form or of its backward pass.
enum class TermFault : std::uint8_t {
  lost,                    ///< and with it whatever is made of it
  lost_alone,              ///< in the gradient alone
  negated,                 ///< the other sign
  undecayed,               ///< without its decay
  exp2,                    ///< 2^G for exp(G)
  log2e_twice,             ///< exp(G log2(e)) for exp(G)
  unscaled,                ///< without scale
  scaled_twice,            ///< the scale once more
  unweighted,              ///< without beta
  weighted,                ///< with beta
  weighted_behind,         ///< beta multiplies the product with A, not what A multiplies
  decayed_behind,          ///< ... its decay does
  doubled,                 ///< it counts twice
  first_tile,              ///< what is summed over columns: over the first tile of them alone
  last_tile,               ///< ... the last
  decay_of_first_tile,     ///< it decays in the second tile of channels as in the first
  decay_of_first_channel,  ///< it decays in all channels as in the first
  gate_less,               ///< its decay is by a gate less: to the row before, or from the row behind
  transposed,              ///< a block of it
  of_next,                 ///< a block of it is the one to its right
};

/// What it multiplies the term by.
double factor_of(TermFault fault, double scale);

// G: the sums of log decays, L: the matrix that is inverted, A: its inverse, u = A beta v,
// w = A beta k exp(G), h: the state that enters the chunk.

/// A term of the chunk form.
enum class ChunkTerm : std::uint8_t {
  none,
  L,
  A,
  Aqk,
  u,
  w,
  carry,    ///< exp(G_n) h, in the state that leaves
  writes,   ///< (k exp(G_n - G))^T v_new, likewise
  readout,  ///< scale q exp(G) h
};

/// Channels of a key: all; those before and from the largest power of two below K on, as tiles have them.
enum class Channels : std::uint8_t { all, first, last };

/// What else a kernel gets wrong of the chunk form; one at a time.
enum class ChunkFault : std::uint8_t {
  none,
  of_term,              ///< what Interpretation::chunk_term says
  exp2_within,          ///< powers of two between rows of a chunk, of e in all else
  exp2_across,          ///< the other way round
  anchors_apart,        ///< blocks of 16 off the diagonal lack the decay of their first row
  sums_over_chunks,     ///< G is not set back where a chunk begins
  initial_state_late,   ///< the first chunk reads zeros for h, and what it leaves has it
  end_of_row_before,    ///< G_n is that of the row before
  column_beta,          ///< L has the beta of its column
  inverse_series_2,     ///< A = I - L
  inverse_series_4,     ///< ... + L^2 - L^3
  inverse_series_8,     ///< ... up to L^7
  inverse_series_16,    ///< ... up to L^15
  inverse_product,      ///< a block of 16 of A lacks one product of its sum
  inverse_last_row,     ///< the last row of each block of 16 on the diagonal of A is that of I - L
  moved,                ///< what Interpretation::move says
  writes_unerased,      ///< the state is written with u for u - w h
  output_unerased,      ///< o is read from u for u - w h
  carry_by_column,      ///< exp(G_n) decays columns of the state, not rows
  first_chunk_alone,    ///< o of the first chunk does not read h
  tail_without_scores,  ///< o of a shorter last chunk lacks Aqk v_new
  scores_unmasked,      ///< o sees later rows of its chunk
  scores_of_next,       ///< o sees the row behind it
  state_of_before,      ///< o reads the state that entered the chunk before
  state_of_after,       ///< o reads the state that leaves the chunk
  state_of_first,       ///< o of all sequences reads the states of the first one
  state_of_stream,      ///< o reads the state of the chunk that has its number where chunks of the row are
                        ///< counted
};

/// Blocks of 16 of a chunk of 64 whose sum lacks a product: row, column, and which of L(row, m) A(m, column).
struct InverseProduct {
  std::size_t row, column, m;
};
inline constexpr InverseProduct inverse_products[] = {{1, 0, 0}, {2, 1, 1}, {3, 2, 2}, {2, 0, 0}, {2, 0, 1},
                                                      {3, 1, 1}, {3, 1, 2}, {3, 0, 0}, {3, 0, 1}, {3, 0, 2}};

/// Blocks off the diagonal of a chunk of 64 that are computed by themselves: rows and columns from, and how
/// many.
struct ScoreBlock {
  std::size_t row, column, side;
};
inline constexpr ScoreBlock score_blocks[] = {{16, 0, 16},  {32, 0, 16},  {32, 16, 16}, {48, 0, 16},
                                              {48, 16, 16}, {48, 32, 16}, {32, 0, 32}};

/// What kernels have for softplus.
struct OtherFunction {
  std::string_view words;
  double (*of)(double);
};
std::span<const OtherFunction> other_softplus();

double unchanged(double x);
double exponential(double x);
double sigmoid(double x);
double softplus(double x);
double squares(std::span<const double> row);
/// What rows of q and k are divided by.
double l2norm(std::span<const double> row);
inline constexpr double norm_epsilon = 1e-6;

/// What a gate is made of, and how: A is exp(A_log), or 1 without one.
struct GateInput {
  double g, bias, A_log, A, bound;
  double (*function)(const GateInput&);
  bool operator==(const GateInput&) const = default;
};
double softplus_gate(const GateInput& in);
double bounded_gate(const GateInput& in);
/// The bound that kernels use where nobody says another.
inline constexpr double usual_lower_bound = -5;

/// How the parts that a sequence is computed in are joined wrongly.
enum class Joint : std::uint8_t {
  none,
  alone,         ///< the state is what the part makes of zeros
  undecayed,     ///< ... added to that before the part
  unerased,      ///< ... which decays, and of which nothing is erased
  chunk_twice,   ///< the last chunk of the part before is applied again
  decay_twice,   ///< ... its decays
  chunk_lost,    ///< the state is that before the last chunk of the part
  token_twice,   ///< the last token of the part before is applied again
  initial_lost,  ///< the state is what the tokens before make of zeros
  one_part,      ///< the state is what the part makes of zeros, but of the first part of its own start
};
double to_bf16(double x);
double to_fp16(double x);

/// Of which other head a value head reads something: so many further on, around the end.
struct HeadShifts {
  std::size_t gate = 0, beta = 0, key = 0, value = 0;   ///< key: of query heads, q too
  std::size_t parameters = 0, amplitude = 0, bias = 0;  ///< A_log and dt_bias; A_log; dt_bias
};

/// Which rows are read with channels of another place: those from the largest power of two below K on with
/// the first ones, each with the one behind it.
struct ChannelShifts {
  bool query_of_first_tile = false, key_of_first_tile = false, gate_of_first_tile = false,
       gate_of_next = false, bias_of_first_tile = false;
};

/// Which row of a tensor a token reads: its own; that of the first chunk, of the chunk before; without the
/// offset of its sequence; of batch row 0; that of the token before, or behind.
enum class RowOf : std::uint8_t {
  itself,
  first_chunk,
  chunk_before,
  start_of_row,
  first_batch,
  before,  ///< of the first: its own
  behind,
  before_or_zeros,
  behind_or_zeros
};
inline constexpr std::size_t rows_of_others = 9;  ///< how many, its own among them
struct RowsOf {
  RowOf query = RowOf::itself, key = RowOf::itself, value = RowOf::itself, gate = RowOf::itself,
        beta = RowOf::itself, predicting_key = RowOf::itself;
};

/// The defaults are the right way; faults (faults.hpp) change one thing.
struct Interpretation {
  using Function = double (*)(double);

  explicit Interpretation(const kda::Problem& problem)
      : key_width(problem.dimensions().K), value_width(problem.dimensions().V), options(problem.options) {
    options.scale = problem.scale(), chunk = static_cast<std::size_t>(problem.options.chunk_size);
  }

  std::size_t key_width, value_width;  ///< K and V
  kda::Options options;                ///< scale, gate, norm, sigmoid as this kernel takes them
  /// What a gate is made of otherwise; applied in order.
  using GateRule = void (*)(GateInput&);
  std::array<GateRule, 2> gate_rules{};
  Function softplus = nullptr;       ///< another function
  bool A_log_of_query_head = false;  ///< of number h / (HV / H) of the value heads
  bool bias_of_query_head = false;   ///< likewise
  /// The element of dt_bias, [HV][K].
  std::size_t (*bias_element)(std::size_t head, std::size_t k, std::size_t heads, std::size_t K) = nullptr;
  double gate_factor = 1;         ///< multiplies the log decay
  Function decay = &exponential;  ///< from the log decay to what multiplies the state
  std::ptrdiff_t gate_delay = 0;  ///< token t decays by the gate of token t - delay; by 1 outside
  std::ptrdiff_t beta_delay = 0;  ///< likewise; 0 outside
  double (*one_gate)(std::span<const double>) = nullptr;  ///< for all channels, of their log decays
  bool gate_of_first_head = false;                        ///< for all heads
  bool gate_of_query_head = false;                        ///< of number h / (HV / H) of the value heads
  bool sums_of_stream = false;        ///< sums of gates start anew at multiples of `chunk` of the packed row
  bool decays_columns = false;        ///< by the decay of the channel of its number
  bool output_late = false;           ///< o is that of the token before
  bool decays_after_update = false;   ///< S := decay (S + k w^T), read before it
  bool predict_before_decay = false;  ///< e = v - S^T k with the state of the token before
  bool prediction_misses_last = false;     ///< ... but for a chunk's first row without what that token wrote
  bool prediction_has_own = false;         ///< w = beta (v - p - k^T k w): with what the token itself writes
  bool output_misses_own = false;          ///< o reads the state before its token writes
  bool output_has_own_unweighted = false;  ///< ... without beta
  bool prediction_of_raw_key = false;      ///< the prediction reads the state along k before its norm
  std::optional<double> lowest_gate;       ///< log decays below -lowest_gate are raised to it
  double beta_factor = 1;
  bool beta_squared = false;        ///< in the update as in the prediction
  bool beta_on_value = false;       ///< v := beta v, before all else
  bool beta_one = false;            ///< beta is not applied
  bool beta_of_query_head = false;  ///< of number h / (HV / H) of the value heads
  bool sigmoid_twice = false;       ///< of beta
  BetaOn beta_on = BetaOn::both;
  bool normalises_query = true, normalises_key = true;
  double (*length)(std::span<const double>) = &l2norm;  ///< what the norm divides a row by
  double more_epsilon = 0;                              ///< under its root
  bool normalises_value = false;
  bool norm_of_heads = false;  ///< over the rows of all heads together
  HeadShifts further;
  ChannelShifts shifted;
  RowsOf rows;
  const InputLayout* layout = nullptr;  ///< of `in_layout`
  TokenInput in_layout = TokenInput::query;
  bool key_interleaved = false;              ///< k, not q, is read from query head h mod H
  bool write_of_query = false;               ///< the state is written along q
  bool prediction_of_query = false;          ///< the prediction reads the state along q
  bool decayed_again = false;                ///< o reads a state that has decayed again
  double (*write_factor)(double) = nullptr;  ///< of a channel's decay, multiplies what it is written with
  double output_factor = 1;
  bool heads_interleaved = false;  ///< value head h reads query head h mod H, not h / (HV / H)
  bool first_query_head = false;   ///< all value heads read query head 0
  bool query_key_swapped = false;  ///< o reads along k, the state is written along q
  bool initial_state = true;       ///< false: zeros
  FinalState final = FinalState::right;
  std::size_t final_at = 0;            ///< the token of FinalState::early; tokens of a part
  bool initial_state_by_head = false;  ///< [HV][N] for [N][HV]
  /// Of another sequence, from its own number and how many there are.
  std::size_t (*initial_sequence)(std::size_t own, std::size_t count) = nullptr;
  /// Of another head, from its own number and those of a group.
  std::size_t (*initial_head)(std::size_t head, std::size_t heads, std::size_t group) = nullptr;
  bool initial_scaled = false;                                            ///< by the scale
  bool initial_state_transposed = false, final_state_transposed = false;  ///< in the other layout
  /// By so many tokens, -1 or 1, a sequence of a packed row begins late.
  std::ptrdiff_t begins_late = 0;
  bool goes_on = false;  ///< a sequence starts from where the one before ended, whatever its initial state
  LastToken last_token = LastToken::computed;
  std::optional<std::size_t> lost_write;  ///< the token whose update of the state is lost
  std::optional<std::size_t> lost_decay;  ///< the token at which the state does not decay
  std::optional<std::size_t> stale_row;   ///< the token whose row of o is that of the one before
  std::optional<std::size_t> lost_state;  ///< the token that reads zeros for the state before it
  Joint joint = Joint::none;
  std::size_t part = 0;  ///< tokens of a part of a sequence, of which the joint is wrong
  // Roundings.
  Function round_beta = &unchanged, round_decay = &unchanged, round_residual = &unchanged,
           round_initial = &unchanged,  ///< the initial state
      round_state = &unchanged,         ///< as o reads it
      round_stored = &unchanged,        ///< as the next token reads it
      round_final = &unchanged;         ///< as it is handed back
  // Of a kernel in chunks of so many rows.
  std::size_t chunk = 64;
  bool loses_states = false;       ///< each chunk starts from zeros
  bool carries_undecayed = false;  ///< a chunk adds its writes to the state before it, which does not decay
  bool writes_undecayed = false;   ///< ... its writes as they are, without their decay to the chunk's end
  ChunkFault chunk_fault = ChunkFault::none;  ///< else it is the chunk form that is computed
  ChunkTerm chunk_term = ChunkTerm::none;
  TermFault term_fault = TermFault::lost;
  Channels channels = Channels::all;  ///< of the term; and of what follows
  bool untouched = false;             ///< which it does not read; the state keeps
  std::size_t block = 0;              ///< of inverse_products or of score_blocks
  const plain::Site* site = nullptr;  ///< a matrix, and what becomes of it
  const plain::Move* move = nullptr;
  // Of the tokens looked at, where they are known: the right chunks of the head, what another head has there.
  const std::vector<plain::Chunk>* loaded = nullptr;
  const std::vector<plain::Matrix>* beside = nullptr;
  Function round_carried = &unchanged, round_sums = &unchanged;  ///< states between chunks; sums of gates
};

/// What the gate function gives in some tokens of a head, so that not every reading evaluates it anew.
struct KnownGates {
  std::size_t begin = 0;
  std::vector<GateInput> inputs;  ///< [tokens][K]
  std::vector<double> values;     ///< likewise
};

/// Tokens [begin, end) of a sequence, in a head.
struct Excerpt {
  kda::Sequence sequence;
  std::size_t begin = 0, end = 0;
  std::size_t head = 0;
  std::vector<double> start = {};  ///< [K][columns], the state before `begin`; empty: the initial state
  std::vector<std::size_t> columns = {};  ///< of V, which do not depend on each other; empty: all
  const KnownGates* gates = nullptr;
};

struct ExcerptAnswer {
  std::vector<double> o;      ///< [tokens][columns]
  std::vector<double> state;  ///< [K][columns], after the last token
};

ExcerptAnswer answer_of(const kda::Problem& problem, const Interpretation& reading, const Excerpt& excerpt);
/// What another head has where `reading` moves something from there; else nothing.
std::vector<plain::Matrix> kept_beside(const kda::Problem& problem, const Interpretation& reading,
                                       Excerpt excerpt);
/// By the right reading; nothing where the problem has no gate function.
KnownGates known_gates(const kda::Problem& problem, const Excerpt& excerpt);
/// Of all heads of all sequences, in fp64.
kda::Answer answer_of(const kda::Problem& problem, const Interpretation& reading);

/// Where element (k, v) of a state lies in its tensor.
std::size_t state_element(const kda::Dimensions& dimensions, bool v_first, std::size_t sequence,
                          std::size_t head, std::size_t k, std::size_t v);

}  // namespace kda_check::hypotheses
