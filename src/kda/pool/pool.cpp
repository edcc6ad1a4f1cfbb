#include "kda/pool/pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "kda/problem/excerpt.hpp"
#include "kda/problem/shapes.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::kda {

namespace {

using tensor::Tensor;

[[noreturn]] void refuse_call(std::string what, std::string hint = {}) {
  throw Error(ErrorKind::input, std::move(what), {}, std::move(hint));
}

/// The table, row by row: all that can be wrong with it is refused here.
class Rows {
 public:
  Rows(const SlotTable& table, const SlotCounts& slots, std::size_t sequences)
      : table_(table), slots_(slots) {
    const std::size_t wanted = sequences * std::max<std::size_t>(1, table.columns);
    if (table.indices.size() != wanted)
      refuse_call(fmt::format("inputs/state_indices has {} entries; wanted {} for {} sequences",
                              table.indices.size(), wanted, sequences));
    check_has_state(table.has_state, sequences);
    const std::size_t outputs = sequences * std::max<std::size_t>(1, table.output_columns);
    if (!table.outputs.empty() && table.outputs.size() != outputs)
      refuse_call(fmt::format("inputs/output_indices has {} entries; wanted {} for {} sequences",
                              table.outputs.size(), outputs, sequences));
    if (table.quantisation && slots.read)
      refuse_call(
          "inputs/state_source is there beside inputs/state_scale; wanted codes that are read and "
          "stored in state_pool");
    if (table.ring.rows > 0) {
      if (table.columns > 0)
        refuse_call("inputs/state_indices is [N,S] beside a ring; wanted [N]",
                    "tokens that are not accepted are those that ring_length of the next call leaves out");
      if (!table.outputs.empty() || slots.read)
        refuse_call(fmt::format("inputs/{} is there beside a ring; wanted one slot a sequence in state_pool",
                                slots.read ? "state_source" : "output_indices"));
      check_ring_entries(table.ring, sequences);
    }
    if (table.accepted.empty()) return;
    if (table.columns == 0)
      refuse_call("inputs/num_accepted_tokens is there but inputs/state_indices is [N]; wanted [N,S]",
                  "a column for every token that may be accepted");
    if (table.accepted.size() != sequences)
      refuse_call(fmt::format("inputs/num_accepted_tokens has {} entries; wanted {}, one a sequence",
                              table.accepted.size(), sequences));
  }

  void add(const Sequence& sequence) {
    const std::size_t n = sequence.index;
    if (sequence.length() == 0) return;
    const std::size_t columns = has_outputs() ? table_.output_columns : table_.columns;
    if (columns > 0 && sequence.length() > columns)
      refuse_call(
          fmt::format("inputs/{} has {} columns but sequence {} has {} tokens; wanted a slot "
                      "for each of them",
                      has_outputs() ? "output_indices" : "state_indices", columns, n, sequence.length()));
    const std::size_t read_from = column_read(n);
    if (read_from == none || is_padding_row(n, read_from, sequence.length()))
      return found_.padding.push_back(sequence);
    const std::size_t from = slot(n, read_from, true);
    if (!slots_.read && !has_outputs()) take(from, n);
    if (!slots_.read && has_outputs()) readers_.emplace(from, n);
    std::vector<PoolPiece>& pieces = found_.pieces;
    const bool from_zero = !table_.has_state.empty() && table_.has_state[n] == 0;
    if (table_.ring.rows > 0) {
      auto [held, written] = ring_rows_of(table_.ring, sequence, from);
      const bool folds = table_.ring.folds(held.size()), folds_call = folds && table_.ring.folds_call;
      if (folds && !folds_call) pieces.push_back({sequence.part(0, 0), from, from, from_zero, held, {}});
      pieces.push_back({sequence, from, folds_call ? from : PoolPiece::nowhere, from_zero, std::move(held),
                        std::move(written)});
      return;
    }
    if (columns == 0) {
      const bool is_stored = !has_outputs() || !is_padding(index(n, 0, true));
      pieces.push_back({sequence, from, is_stored ? slot(n, 0) : PoolPiece::nowhere, from_zero, {}, {}});
      if (is_stored) take(pieces.back().to, n);
      return;
    }
    std::set<std::size_t> stored;
    const std::size_t tokens = has_outputs() ? sequence.length() : tokens_of(n, sequence.length());
    if (tokens < sequence.length()) found_.padding.push_back(sequence.part(tokens, sequence.length()));
    for (std::size_t t = 0; t < tokens; ++t) {
      const bool is_stored = !is_padding(index(n, t, has_outputs()));
      // What is stored nowhere has an o where outputs say so.
      if (!is_stored && (!has_outputs() || t + 1 < tokens)) continue;
      const std::size_t to = is_stored ? slot(n, t) : PoolPiece::nowhere;
      if (is_stored && !stored.insert(to).second)
        refuse_call(fmt::format("{} is {}, as another of the row; wanted a slot for each token",
                                entry(n, t, has_outputs()), to));
      if (is_stored) take(to, n);
      pieces.push_back({sequence.part(0, t + 1), from, to, from_zero, {}, {}});
    }
  }

  PoolPieces found() {
    for (const auto& [slot, n] : readers_)
      if (const auto owner = owners_.find(slot); owner != owners_.end() && owner->second != n)
        refuse_call(
            fmt::format("slot {} is read by sequence {} and stored to by sequence {}; wanted it in one "
                        "row only",
                        slot, n, owner->second),
            "what is read would depend on who is first");
    if (found_.pieces.empty())
      refuse_call("inputs/state_indices has padding alone: no token of this call is computed");
    return std::move(found_);
  }

 private:
  static constexpr std::size_t none = std::size_t(-1);

  bool has_outputs() const { return !table_.outputs.empty(); }
  /// `output`: of output_indices.
  std::int64_t index(std::size_t n, std::size_t column, bool output = false) const {
    return output ? table_.outputs[n * std::max<std::size_t>(1, table_.output_columns) + column]
                  : table_.indices[n * std::max<std::size_t>(1, table_.columns) + column];
  }
  std::string entry(std::size_t n, std::size_t column, bool output = false) const {
    const std::string_view table = output ? "output_indices" : "state_indices";
    return (output ? table_.output_columns : table_.columns) == 0
               ? fmt::format("inputs/{}[{}]", table, n)
               : fmt::format("inputs/{}[{},{}]", table, n, column);
  }
  /// `none`: of padding.
  std::size_t column_read(std::size_t n) const {
    if (table_.accepted.empty()) return 0;
    const std::int64_t accepted = table_.accepted[n], columns = static_cast<std::int64_t>(table_.columns);
    if (accepted >= 1 && accepted <= columns) return static_cast<std::size_t>(accepted - 1);
    if (table_.padding == PaddingSlots::nonpositive) return none;
    if (table_.padding == PaddingSlots::negative_tokens) return accepted < 1 ? 0 : table_.columns - 1;
    refuse_call(fmt::format("inputs/num_accepted_tokens[{}] is {}; wanted 1..{}, the columns of "
                            "inputs/state_indices",
                            n, accepted, columns),
                "a kernel reads the slot of column num_accepted_tokens - 1");
  }
  /// Whether the row of so many tokens that is read from that column is padding as a whole.
  bool is_padding_row(std::size_t n, std::size_t column, std::size_t length) const {
    if (!is_padding(index(n, column))) return false;
    if (table_.padding != PaddingSlots::negative_tokens || table_.columns == 0 || has_outputs()) return true;
    for (std::size_t t = 0; t < length; ++t)
      if (!is_padding(index(n, t)))
        refuse_call(
            fmt::format("{} is {}, where the row begins, and token {} is stored in slot {}; wanted padding "
                        "in all of the row",
                        entry(n, column), index(n, column), t, index(n, t)),
            "a kernel that looks at the slots of tokens alone reads slot 0 there");
    return true;
  }
  /// Tokens of a row that is none: all of them, or those before the first that is padding.
  std::size_t tokens_of(std::size_t n, std::size_t length) const {
    std::size_t tokens = 0;
    while (tokens < length && !is_padding(index(n, tokens))) ++tokens;
    if (tokens == length || table_.padding == PaddingSlots::nonpositive) return length;
    if (table_.padding != PaddingSlots::negative_tokens)
      refuse_call(fmt::format("{} is {}, which is padding, and token {} of the sequence is stored there",
                              entry(n, tokens), index(n, tokens), tokens),
                  "a row is padding as a whole, by the slot it is read from");
    for (std::size_t t = tokens; t < length; ++t)
      if (!is_padding(index(n, t)))
        refuse_call(fmt::format("{} is {}, which is padding, and token {} behind it is stored in slot {}",
                                entry(n, tokens), index(n, tokens), t, index(n, t)),
                    "the tokens of a row that are padding are its last ones");
    return tokens;
  }
  bool is_padding(std::int64_t slot) const {
    return table_.padding != PaddingSlots::none &&
           slot < (table_.padding == PaddingSlots::nonpositive ? 1 : 0);
  }
  /// That a row is read from, or stored in.
  std::size_t slot(std::size_t n, std::size_t column, bool is_read = false) const {
    const bool output = !is_read && has_outputs(), elsewhere = is_read && slots_.read;
    const std::int64_t found = index(n, column, output),
                       slots = static_cast<std::int64_t>(elsewhere ? *slots_.read : slots_.stored);
    if (found < 0 || found >= slots)
      refuse_call(fmt::format("{} is {}; wanted 0..{}, the slots of inputs/{}", entry(n, column, output),
                              found, slots - 1, elsewhere ? "state_source" : "state_pool"),
                  found < 0 && table_.padding == PaddingSlots::none
                      ? "options/padding_slots says which numbers are padding"
                      : "");
    return static_cast<std::size_t>(found);
  }
  void take(std::size_t slot, std::size_t n) {
    const auto [owner, is_new] = owners_.emplace(slot, n);
    if (!is_new && owner->second != n)
      refuse_call(fmt::format("inputs/{} names slot {} in the rows of sequences {} and {}; wanted a "
                              "slot in one row only",
                              has_outputs() ? "output_indices" : "state_indices", slot, owner->second, n),
                  has_outputs() ? ""
                                : "also where no row stores to it: two sequences that begin from one state "
                                  "need two slots of it");
  }

  const SlotTable& table_;
  const SlotCounts slots_;
  std::map<std::size_t, std::size_t> owners_;        ///< by slot: the sequence that names it
  std::multimap<std::size_t, std::size_t> readers_;  ///< ... and those that read it where others store
  PoolPieces found_;
};

std::size_t bytes_of_slot(const Tensor& states) { return states.bytes() / states.shape()[0]; }

/// Where pieces begin in the ordinary form.
std::vector<std::int64_t> offsets_of(const std::vector<PoolPiece>& pieces) {
  std::vector<std::int64_t> offsets{0};
  for (const PoolPiece& piece : pieces)
    offsets.push_back(offsets.back() + static_cast<std::int64_t>(piece.length()));
  return offsets;
}

std::vector<PoolPiece> as_pieces(const std::vector<Sequence>& sequences) {
  std::vector<PoolPiece> pieces;
  for (const Sequence& one : sequences)
    pieces.push_back({one, PoolPiece::nowhere, PoolPiece::nowhere, false, {}, {}});
  return pieces;
}

/// Codes and scales that were handed in become states.
void quantise(PoolCall& call) {
  call.scale = std::move(call.scale).named("state_scale");
  check_scale(call.states.shape(), call.scale.shape());
  call.codes = std::exchange(call.states, {});
  call.states = dequantised(call.codes, call.scale);
}

/// Whether the next piece has the tokens of this one, and more.
bool goes_on(const std::vector<PoolPiece>& pieces, std::size_t p) {
  return p + 1 < pieces.size() && pieces[p + 1].tokens.index == pieces[p].tokens.index;
}

}  // namespace

std::string_view name_of(PaddingSlots padding) {
  constexpr std::string_view names[] = {"none", "negative", "nonpositive", "negative_tokens"};
  return names[static_cast<std::size_t>(padding)];
}

std::string_view name_of(PaddingOutput output) {
  constexpr std::string_view names[] = {"unspecified", "zero", "untouched"};
  return names[static_cast<std::size_t>(output)];
}

PoolPieces pieces_of(const SlotTable& table, const SlotCounts& slots,
                     const std::vector<Sequence>& sequences) {
  Rows rows(table, slots, sequences.size());
  for (const Sequence& sequence : sequences) rows.add(sequence);
  return rows.found();
}

void check_has_state(const std::vector<std::int64_t>& has_state, std::size_t sequences) {
  if (!has_state.empty() && has_state.size() != sequences)
    refuse_call(fmt::format("inputs/has_initial_state has {} entries; wanted {}, one a sequence",
                            has_state.size(), sequences));
  for (std::size_t n = 0; n < has_state.size(); ++n)
    if (has_state[n] != 0 && has_state[n] != 1)
      refuse_call(fmt::format("inputs/has_initial_state[{}] is {}; wanted 0 or 1", n, has_state[n]));
}

void zero_state(Tensor& states, std::size_t n) {
  const std::size_t bytes = bytes_of_slot(states);
  std::memset(states.data() + n * bytes, 0, bytes);
}

Tensor states_read(const PoolCall& call, const std::vector<PoolPiece>& pieces) {
  std::vector<std::size_t> slots;
  for (const PoolPiece& piece : pieces) slots.push_back(piece.from);
  Tensor states = tensor::picked(call.read_from(), 0, slots).named("initial_state");
  for (std::size_t p = 0; p < pieces.size(); ++p)
    if (pieces[p].from_zero) zero_state(states, p);
  return states;
}

Problem of_pieces(const PoolCall& call, const std::vector<PoolPiece>& pieces, const Tensor& states) {
  std::vector<Sequence> tokens;
  for (const PoolPiece& piece : pieces) {
    tokens.push_back(piece.tokens);
    tokens.back().index = tokens.size() - 1;
  }
  Problem own = excerpt(call.problem, tokens, Layout::packed, {&states, nullptr});
  return call.ring.empty() ? std::move(own) : behind_rings(std::move(own), call, pieces);
}

void check_call(const Outline& call) {
  for (const char* const name : {"initial_state", "do", "dht"})
    if (call.has(name))
      refuse_call(
          fmt::format("inputs/{} is there beside inputs/state_pool; a call on a pool has none", name));
}

std::string_view in_ordinary_form(std::string_view tensor) {
  return tensor == "state_pool" ? std::string_view("final_state") : tensor;
}

Outline ordinary_form(const Outline& call, numeric::DType states, const std::vector<PoolPiece>& pieces) {
  check_call(call);
  Outline outline = call;
  put_behind_rings(outline);
  outline.cu_seqlens = offsets_of(pieces);
  outline.inputs.emplace_back("initial_state", states);
  outline.has_pool = true;
  Dimensions& d = outline.dimensions;
  d.B = 1, d.N = pieces.size(), d.T = static_cast<std::size_t>(outline.cu_seqlens.back()), d.NT = 0;
  for (const PoolPiece& piece : pieces) d.NT += (piece.length() + d.C - 1) / d.C;
  return outline;
}

Problem ordinary_form(PoolCall call) {
  check_call(call.problem);
  call.states = std::move(call.states).named("state_pool");
  if (call.source) call.source = std::move(*call.source).named("state_source");
  for (const Tensor* const pool : {&std::as_const(call.states), &call.read_from()})
    check_shape(pool->name(), "inputs/" + pool->name(), pool->shape(), call.problem.dimensions(),
                call.problem.options.state_v_first);
  if (call.table.quantisation) quantise(call);
  for (auto& [name, ring] : call.ring) {
    ring = std::move(ring).named(name);
    check_shape(name, "inputs/" + name, ring.shape(), call.problem.dimensions(), false);
  }
  call.table.ring.rows = rows_of_rings(
      [&](std::string_view name) {
        const auto ring = call.ring.find(name);
        return ring == call.ring.end() ? nullptr : &ring->second.shape();
      },
      call.slots(), call.problem.dimensions());
  SlotCounts slots{call.slots(), {}};
  if (call.source) slots.read = call.source->shape()[0];
  PoolPieces found = pieces_of(call.table, slots, call.problem.sequences());
  call.pieces = std::move(found.pieces), call.padding = std::move(found.padding);
  Problem problem = of_pieces(call, call.pieces, states_read(call, call.pieces));
  problem.pool = std::make_shared<const PoolCall>(std::move(call));
  return problem;
}

Tensor rows_of(const PoolCall& call, const Tensor& o, const std::vector<PoolPiece>& pieces) {
  tensor::Shape shape = o.shape();
  const std::size_t bytes = o.bytes() / (shape[0] * shape[1]);
  shape[0] = 1, shape[1] = static_cast<std::size_t>(offsets_of(pieces).back());
  Tensor rows(o.name(), o.dtype(), std::move(shape));
  std::memset(rows.data(), 0, rows.bytes());
  std::byte* to = rows.data();
  for (const PoolPiece& piece : pieces) {
    if (piece.tokens.length() > 0)
      std::memcpy(to + piece.held.size() * bytes, o.data() + row_of(call.problem, piece.tokens, 0) * bytes,
                  piece.tokens.length() * bytes);
    to += piece.length() * bytes;
  }
  return rows;
}

Tensor output_of(const PoolCall& call, const Tensor& from, const std::vector<PoolPiece>& pieces) {
  Tensor o("o", from.dtype(), shape_of("o", call.problem));
  const std::size_t row = from.bytes() / from.shape()[1];
  std::memset(o.data(), 0, o.bytes());
  const std::vector<std::int64_t> offsets = offsets_of(pieces);
  for (std::size_t p = 0; p < pieces.size(); ++p)
    if (!goes_on(pieces, p))
      std::memcpy(o.data() + row_of(call.problem, pieces[p].tokens, 0) * row,
                  from.data() + (static_cast<std::size_t>(offsets[p]) + pieces[p].held.size()) * row,
                  pieces[p].tokens.length() * row);
  return o;
}

Tensors of_call(const PoolCall& call, const Tensors& ordinary) {
  Tensors answer;
  if (const auto found = ordinary.find("o"); found != ordinary.end()) {
    answer.emplace("o", output_of(call, found->second, call.pieces));
  }
  if (const auto whole = ordinary.find("state_pool"); whole != ordinary.end()) {
    answer.emplace("state_pool", whole->second.clone());
    if (call.is_quantised()) answer.emplace("state_scale", ordinary.at("state_scale").clone());
  } else if (const auto found = ordinary.find("final_state"); found == ordinary.end()) {
  } else if (call.is_quantised()) {
    QuantisedPool pool = quantised(call, call.pieces, found->second);
    answer.emplace("state_pool", std::move(pool.codes)), answer.emplace("state_scale", std::move(pool.scale));
  } else {
    Tensor pool = call.states.clone();
    const Tensor states = as_stored(call, call.pieces, found->second);
    const std::size_t bytes = bytes_of_slot(pool);
    for (std::size_t p = 0; p < call.pieces.size(); ++p)
      if (call.pieces[p].is_stored())
        std::memcpy(pool.data() + call.pieces[p].to * bytes, states.data() + p * bytes, bytes);
    answer.emplace("state_pool", std::move(pool));
  }
  for (const auto& [name, ring] : call.ring) {
    const auto found = ordinary.find(name);
    if (found != ordinary.end() || name != "ring_u")
      answer.emplace(name, found != ordinary.end() ? found->second.clone() : ring_after(call, ring));
  }
  return answer;
}

Tensors of_ordinary_form(const PoolCall& call, Tensors answer) {
  if (const auto found = answer.find("o"); found != answer.end()) {
    if (call.table.padding_output == PaddingOutput::zero && !call.padding.empty())
      answer.emplace("padding_output",
                     rows_of(call, found->second, as_pieces(call.padding)).named("padding_output"));
    found->second = rows_of(call, found->second, call.pieces);
  }
  if (const auto found = answer.find("state_pool"); found != answer.end()) {
    std::vector<std::size_t> slots;
    for (const PoolPiece& piece : call.pieces) slots.push_back(piece.is_stored() ? piece.to : 0);
    const auto scale = answer.find("state_scale");
    Tensor states = tensor::picked(scale != answer.end() ? dequantised(found->second, scale->second)
                                                         : found->second.clone(),
                                   0, slots)
                        .named("final_state");
    for (std::size_t p = 0; p < call.pieces.size(); ++p)
      if (!call.pieces[p].is_stored()) zero_state(states, p);
    answer.insert_or_assign("final_state", std::move(states));
  }
  return answer;
}

std::vector<std::string> beside_pool(const PoolCall& call) {
  std::vector<std::string> names;
  if (call.is_quantised()) names.emplace_back("state_scale");
  for (const auto& [name, ring] : call.ring) names.push_back(name);
  return names;
}

std::vector<std::size_t> slots_left_alone(const PoolCall& call) {
  std::vector<bool> is_stored(call.slots(), false);
  for (const PoolPiece& piece : call.pieces)
    if (piece.is_stored()) is_stored[piece.to] = true;
  std::vector<std::size_t> slots;
  for (std::size_t slot = 0; slot < is_stored.size(); ++slot)
    if (!is_stored[slot]) slots.push_back(slot);
  return slots;
}

std::string place_in_call(const PoolCall& call, std::string_view tensor, std::vector<std::size_t>& index) {
  const bool v_first = call.problem.options.state_v_first;
  if (tensor == "final_state") {
    const PoolPiece& piece = call.pieces[index[0]];
    index[0] = piece.is_stored() ? piece.to : piece.tokens.index;
    return place(piece.is_stored() ? "state_pool" : tensor, index, v_first);
  }
  if (tensor == "o") {
    const std::vector<std::int64_t> offsets = offsets_of(call.pieces);
    const auto token = static_cast<std::int64_t>(index[1]);
    const auto behind = std::ranges::upper_bound(offsets, token);
    const PoolPiece& piece = call.pieces[static_cast<std::size_t>(behind - offsets.begin()) - 1];
    const auto own = static_cast<std::size_t>(token - behind[-1]);  // of a ring's tokens nothing is compared
    index[0] = piece.tokens.batch;
    index[1] = piece.tokens.begin + own - std::min(own, piece.held.size());
  }
  return place(tensor, index, v_first);
}

Problem with_inputs_rounded_to(const Problem& problem, numeric::DType dtype) {
  if (problem.pool) {
    const PoolCall& call = *problem.pool;
    PoolCall rounded{with_inputs_rounded_to(call.problem, dtype), call.stored().clone(), call.table};
    if (call.is_quantised()) rounded.scale = call.scale.clone();
    if (call.source) rounded.source = call.source->clone();
    for (const auto& [name, ring] : call.ring) {
      const bool is_rounded = name == "ring_k" || name == "ring_v" || name == "ring_u";
      rounded.ring.emplace(name, is_rounded ? ring.converted_to(dtype) : ring.clone());
    }
    return ordinary_form(std::move(rounded));
  }
  return with_inputs(problem, [&](const InputSlot& slot, const tensor::Tensor& tensor) {
    return slot.is_rounded ? tensor.converted_to(dtype) : tensor.clone();
  });
}

}  // namespace kda_check::kda
