// A call of a decode kernel, which reads states from slots of a pool and stores them there (docs/serving.md),
// and its ordinary form: a packed problem that has a sequence for every state that is stored, which begins at
// the state that is read and ends with the token it is stored behind. All that runs on problems runs on
// that; what a kernel answers to the call is brought into the same form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kda/pool/quantised.hpp"
#include "kda/pool/ring.hpp"
#include "kda/problem/outline.hpp"
#include "kda/problem/passes.hpp"

namespace kda_check::kda {

/// Which numbers in a table of slots are none: rows that begin there are padding (docs/serving.md).
enum class PaddingSlots : std::uint8_t {
  none,         ///< all are slots: FLA
  negative,     ///< SGLang, FlashInfer with one slot a sequence
  nonpositive,  ///< slot 0 is the null block; a number of accepted tokens that the table does not have: vLLM
  negative_tokens,  ///< tokens of a draft, too; any number of accepted tokens is one that there is:
                    ///< FlashInfer
};
std::string_view name_of(PaddingSlots padding);
inline constexpr PaddingSlots every_padding[] = {PaddingSlots::none, PaddingSlots::negative,
                                                 PaddingSlots::nonpositive, PaddingSlots::negative_tokens};

/// What a kernel writes as o of rows of padding.
enum class PaddingOutput : std::uint8_t { unspecified, zero, untouched };
std::string_view name_of(PaddingOutput output);
inline constexpr PaddingOutput every_padding_output[] = {PaddingOutput::unspecified, PaddingOutput::zero,
                                                         PaddingOutput::untouched};

/// state_indices, output_indices, num_accepted_tokens and has_initial_state.
struct SlotTable {
  std::vector<std::int64_t> indices;  ///< [N] or [N, columns]
  std::size_t columns = 0;  ///< 0: one slot a sequence, where its state is read and stored at the end
  std::vector<std::int64_t> accepted;  ///< [N]; empty: the first column is read
  PaddingSlots padding = PaddingSlots::none;
  std::vector<std::int64_t> has_state =
      {};  ///< [N]: 0 starts from zero, whatever its slot holds; empty: none
  /// [N] or [N, output_columns]: where states are stored, of each token or at the end; padding: nowhere.
  std::vector<std::int64_t> outputs = {};  ///< empty: in the slots of `indices`
  std::size_t output_columns = 0;
  PaddingOutput padding_output = PaddingOutput::unspecified;
  RingTable ring = {};
  std::optional<Quantisation> quantisation = {};  ///< of a pool of codes
  CodeRounding rounding = CodeRounding::nearest;
  std::optional<std::uint64_t> seed = {};  ///< of draws that can be replayed

  bool is_drawn() const { return rounding == CodeRounding::stochastic; }
  bool operator==(const SlotTable&) const = default;
};

/// The beginning of a sequence of a call, the slot it reads its state from, and the one that the state behind
/// its last token is stored in.
struct PoolPiece {
  Sequence tokens;
  std::size_t from, to;    ///< `to` may be `nowhere`
  bool from_zero = false;  ///< and not from what slot `from` holds
  /// Rows of rings (ring.hpp): those whose tokens come first, and those that these are written to.
  std::vector<std::size_t> held = {}, written = {};

  static constexpr std::size_t nowhere = std::size_t(-1);
  bool is_stored() const { return to != nowhere; }
  std::size_t length() const { return held.size() + tokens.length(); }  ///< in the ordinary form
};
struct PoolPieces {
  std::vector<PoolPiece> pieces;
  std::vector<Sequence> padding;
};

/// The pieces of a call on pools of that many slots, by sequence and token; none of padding, of sequences
/// without tokens and of tokens whose state is not stored, but for the last token of a row that has outputs.
/// Throws Error{input} for a table that says what cannot be done.
struct SlotCounts {
  std::size_t stored;
  std::optional<std::size_t> read;  ///< of another pool
};
PoolPieces pieces_of(const SlotTable& table, const SlotCounts& slots, const std::vector<Sequence>& sequences);

/// Throws Error{input} unless there is a 0 or a 1 for each of so many sequences.
void check_has_state(const std::vector<std::int64_t>& has_state, std::size_t sequences);
/// State number n of these becomes zero.
void zero_state(tensor::Tensor& states, std::size_t n);

/// Throws Error{input} for what a call on a pool cannot have: an initial state, a loss.
void check_call(const Outline& call);

struct PoolCall {
  Problem problem;        ///< its tokens, without an initial state and a loss
  tensor::Tensor states;  ///< state_pool [slots,HV,K,V], or [slots,HV,V,K]
  SlotTable table;
  std::optional<tensor::Tensor> source = {};  ///< state_source, where states are read from another pool
  Tensors ring = {};                          ///< ring_k and so on, where there are rings
  std::vector<PoolPiece> pieces = {};         ///< ordinary_form fills it in, and this
  std::vector<Sequence> padding = {};
  tensor::Tensor scale = {};  ///< of a quantised pool; ordinary_form takes its codes out of `states`
  tensor::Tensor codes = {};  ///< as numbers of fp32: states are those times the scale, in fp64

  const tensor::Tensor& read_from() const { return source ? *source : states; }
  std::size_t slots() const { return states.shape()[0]; }
  bool is_quantised() const { return !codes.empty(); }
  /// The pool as it is handed in.
  const tensor::Tensor& stored() const { return is_quantised() ? codes : states; }
};

/// The states that pieces start from, one after the other.
tensor::Tensor states_read(const PoolCall& call, const std::vector<PoolPiece>& pieces);
/// Pieces as the sequences of a problem that start from these.
Problem of_pieces(const PoolCall& call, const std::vector<PoolPiece>& pieces, const tensor::Tensor& states);

/// Its ordinary form, which keeps it. Throws Error{input} as pieces_of and check_call do.
Problem ordinary_form(PoolCall call);
/// The same of its outline; `states`: the element type of the pool that is read.
Outline ordinary_form(const Outline& call, numeric::DType states, const std::vector<PoolPiece>& pieces);

/// o of a call, zero at padding, from that of these pieces; and the other way round, zero at tokens of rings.
tensor::Tensor output_of(const PoolCall& call, const tensor::Tensor& o, const std::vector<PoolPiece>& pieces);
tensor::Tensor rows_of(const PoolCall& call, const tensor::Tensor& o, const std::vector<PoolPiece>& pieces);

/// The tensors of a call: o in its shape, zero at padding, state_pool and its state_scale, and rings but
/// ring_u; from those of its ordinary form.
Tensors of_call(const PoolCall& call, const Tensors& ordinary);
/// The other way round: o, zero at tokens of a ring, and final_state, as far as they are there. Pool and
/// rings stay beside them, and o of padding that must be zero as padding_output. States that are stored
/// nowhere are zero.
Tensors of_ordinary_form(const PoolCall& call, Tensors answer);

/// The same problem with q, k, v and do rounded to `dtype`; gates, beta, parameters and states stay as they
/// are. What the rounding costs is then part of the problem, not charged to whoever solves it. A call stays a
/// call on the same pool.
Problem with_inputs_rounded_to(const Problem& problem, numeric::DType dtype);

/// What holds a tensor of that name of a call in its ordinary form: final_state for state_pool.
std::string_view in_ordinary_form(std::string_view tensor);

/// The other tensors that a call on a pool changes: rings, the scale.
inline bool is_beside_pool(std::string_view tensor) { return is_ring(tensor) || tensor == "state_scale"; }
std::vector<std::string> beside_pool(const PoolCall& call);

/// Slots that nobody stores to: every bit of them must stay.
std::vector<std::size_t> slots_left_alone(const PoolCall& call);

/// "o[b=0 t=3 h=0 v=5]", "state_pool[s=12 h=0 k=1 v=5]" of an element of o or final_state of the ordinary
/// form. Changes the index to that.
std::string place_in_call(const PoolCall& call, std::string_view tensor, std::vector<std::size_t>& index);

}  // namespace kda_check::kda
