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
  Rows(const SlotTable& table, std::size_t slots, std::size_t sequences)
      : table_(table), slots_(static_cast<std::int64_t>(slots)) {
    const std::size_t wanted = sequences * std::max<std::size_t>(1, table.columns);
    if (table.indices.size() != wanted)
      refuse_call(fmt::format("inputs/state_indices has {} entries; wanted {} for {} sequences",
                              table.indices.size(), wanted, sequences));
    check_has_state(table.has_state, sequences);
    if (table.accepted.empty()) return;
    if (table.columns == 0)
      refuse_call("inputs/num_accepted_tokens is there but inputs/state_indices is [N]; wanted [N,S]",
                  "a column for every token that may be accepted");
    if (table.accepted.size() != sequences)
      refuse_call(fmt::format("inputs/num_accepted_tokens has {} entries; wanted {}, one a sequence",
                              table.accepted.size(), sequences));
  }

  void add(const Sequence& sequence, std::vector<PoolPiece>& pieces) {
    const std::size_t n = sequence.index;
    if (sequence.length() == 0) return;
    if (table_.columns > 0 && sequence.length() > table_.columns)
      refuse_call(
          fmt::format("inputs/state_indices has {} columns but sequence {} has {} tokens; wanted a slot "
                      "for each of them",
                      table_.columns, n, sequence.length()));
    const std::size_t read_from = column_read(n);
    if (read_from == none || is_padding_row(n, read_from, sequence.length())) return;
    const std::size_t from = slot(n, read_from);
    take(from, n);
    const bool from_zero = !table_.has_state.empty() && table_.has_state[n] == 0;
    if (table_.columns == 0) return pieces.push_back({sequence, from, from, from_zero});
    std::set<std::size_t> stored;
    const std::size_t tokens = tokens_of(n, sequence.length());
    for (std::size_t t = 0; t < tokens; ++t) {
      if (is_padding(n, t)) continue;
      const std::size_t to = slot(n, t);
      if (!stored.insert(to).second)
        refuse_call(
            fmt::format("{} is {}, as another of the row; wanted a slot for each token", entry(n, t), to));
      take(to, n);
      pieces.push_back({sequence.part(0, t + 1), from, to, from_zero});
    }
  }

 private:
  static constexpr std::size_t none = std::size_t(-1);

  std::int64_t index(std::size_t n, std::size_t column) const {
    return table_.indices[n * std::max<std::size_t>(1, table_.columns) + column];
  }
  std::string entry(std::size_t n, std::size_t column) const {
    return table_.columns == 0 ? fmt::format("inputs/state_indices[{}]", n)
                               : fmt::format("inputs/state_indices[{},{}]", n, column);
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
    if (!is_padding(n, column)) return false;
    if (table_.padding != PaddingSlots::negative_tokens || table_.columns == 0) return true;
    for (std::size_t t = 0; t < length; ++t)
      if (!is_padding(n, t))
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
    while (tokens < length && !is_padding(n, tokens)) ++tokens;
    if (tokens == length || table_.padding == PaddingSlots::nonpositive) return length;
    if (table_.padding != PaddingSlots::negative_tokens)
      refuse_call(fmt::format("{} is {}, which is padding, and token {} of the sequence is stored there",
                              entry(n, tokens), index(n, tokens), tokens),
                  "a row is padding as a whole, by the slot it is read from");
    for (std::size_t t = tokens; t < length; ++t)
      if (!is_padding(n, t))
        refuse_call(fmt::format("{} is {}, which is padding, and token {} behind it is stored in slot {}",
                                entry(n, tokens), index(n, tokens), t, index(n, t)),
                    "the tokens of a row that are padding are its last ones");
    return tokens;
  }
  bool is_padding(std::size_t n, std::size_t column) const {
    switch (table_.padding) {
      case PaddingSlots::none:
        return false;
      case PaddingSlots::negative:
      case PaddingSlots::negative_tokens:
        return index(n, column) < 0;
      case PaddingSlots::nonpositive:
        break;
    }
    return index(n, column) <= 0;
  }
  std::size_t slot(std::size_t n, std::size_t column) const {
    const std::int64_t found = index(n, column);
    if (found < 0 || found >= slots_)
      refuse_call(fmt::format("{} is {}; wanted 0..{}, the slots of inputs/state_pool", entry(n, column),
                              found, slots_ - 1),
                  found < 0 && table_.padding == PaddingSlots::none
                      ? "options/padding_slots says which numbers are padding"
                      : "");
    return static_cast<std::size_t>(found);
  }
  void take(std::size_t slot, std::size_t n) {
    const auto [owner, is_new] = owners_.emplace(slot, n);
    if (!is_new && owner->second != n)
      refuse_call(
          fmt::format("inputs/state_indices names slot {} in the rows of sequences {} and {}; wanted a "
                      "slot in one row only",
                      slot, owner->second, n),
          "also where no row stores to it: two sequences that begin from one state need two slots of it");
  }

  const SlotTable& table_;
  const std::int64_t slots_;
  std::map<std::size_t, std::size_t> owners_;  ///< by slot: the sequence that names it
};

std::size_t bytes_of_slot(const Tensor& states) { return states.bytes() / states.shape()[0]; }

/// Where pieces begin in the ordinary form.
std::vector<std::int64_t> offsets_of(const std::vector<PoolPiece>& pieces) {
  std::vector<std::int64_t> offsets{0};
  for (const PoolPiece& piece : pieces)
    offsets.push_back(offsets.back() + static_cast<std::int64_t>(piece.tokens.length()));
  return offsets;
}

/// Whether the next piece has the tokens of this one, and more.
bool goes_on(const std::vector<PoolPiece>& pieces, std::size_t p) {
  return p + 1 < pieces.size() && pieces[p + 1].tokens.index == pieces[p].tokens.index;
}

}  // namespace

std::string_view name_of(PaddingSlots padding) {
  switch (padding) {
    case PaddingSlots::none:
      return "none";
    case PaddingSlots::negative:
      return "negative";
    case PaddingSlots::nonpositive:
      return "nonpositive";
    case PaddingSlots::negative_tokens:
      break;
  }
  return "negative_tokens";
}

std::vector<PoolPiece> pieces_of(const SlotTable& table, std::size_t slots,
                                 const std::vector<Sequence>& sequences) {
  Rows rows(table, slots, sequences.size());
  std::vector<PoolPiece> pieces;
  for (const Sequence& sequence : sequences) rows.add(sequence, pieces);
  if (pieces.empty())
    refuse_call("inputs/state_indices has padding alone: no token of this call is computed");
  return pieces;
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
  Tensor states = tensor::picked(call.states, 0, slots);
  for (std::size_t p = 0; p < pieces.size(); ++p)
    if (pieces[p].from_zero) zero_state(states, p);
  return states;
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
  outline.cu_seqlens = offsets_of(pieces);
  outline.inputs.emplace_back("initial_state", states);
  outline.has_pool = true;
  Dimensions& d = outline.dimensions;
  d.B = 1, d.N = pieces.size(), d.T = static_cast<std::size_t>(outline.cu_seqlens.back()), d.NT = 0;
  for (const PoolPiece& piece : pieces) d.NT += (piece.tokens.length() + d.C - 1) / d.C;
  return outline;
}

Problem ordinary_form(PoolCall call) {
  check_call(call.problem);
  call.states = std::move(call.states).named("state_pool");
  check_shape("state_pool", "inputs/state_pool", call.states.shape(), call.problem.dimensions(),
              call.problem.options.state_v_first);
  call.pieces = pieces_of(call.table, call.slots(), call.problem.sequences());
  std::vector<Sequence> tokens;
  for (const PoolPiece& piece : call.pieces) {
    tokens.push_back(piece.tokens);
    tokens.back().index = tokens.size() - 1;
  }
  const Tensor states = states_read(call, call.pieces);
  Problem problem = excerpt(call.problem, tokens, Layout::packed, {&states, nullptr});
  problem.pool = std::make_shared<const PoolCall>(std::move(call));
  return problem;
}

Tensors of_call(const PoolCall& call, const Tensors& ordinary) {
  Tensors answer;
  if (const auto found = ordinary.find("o"); found != ordinary.end()) {
    const Tensor& from = found->second;
    Tensor o("o", from.dtype(), shape_of("o", call.problem));
    const std::size_t row = from.bytes() / from.shape()[1];
    std::memset(o.data(), 0, o.bytes());
    const std::vector<std::int64_t> offsets = offsets_of(call.pieces);
    for (std::size_t p = 0; p < call.pieces.size(); ++p)
      if (!goes_on(call.pieces, p))
        std::memcpy(o.data() + row_of(call.problem, call.pieces[p].tokens, 0) * row,
                    from.data() + static_cast<std::size_t>(offsets[p]) * row,
                    call.pieces[p].tokens.length() * row);
    answer.emplace("o", std::move(o));
  }
  if (const auto whole = ordinary.find("state_pool"); whole != ordinary.end()) {
    answer.emplace("state_pool", whole->second.clone());
  } else if (const auto found = ordinary.find("final_state"); found != ordinary.end()) {
    Tensor pool = call.states.clone();
    const Tensor states = found->second.converted_to(pool.dtype());
    const std::size_t bytes = bytes_of_slot(pool);
    for (std::size_t p = 0; p < call.pieces.size(); ++p)
      std::memcpy(pool.data() + call.pieces[p].to * bytes, states.data() + p * bytes, bytes);
    answer.emplace("state_pool", std::move(pool));
  }
  return answer;
}

Tensors of_ordinary_form(const PoolCall& call, Tensors answer) {
  if (const auto found = answer.find("o"); found != answer.end()) {
    const Tensor& from = found->second;
    tensor::Shape shape = from.shape();
    const std::size_t row = from.bytes() / (shape[0] * shape[1]);
    const std::vector<std::int64_t> offsets = offsets_of(call.pieces);
    shape[0] = 1, shape[1] = static_cast<std::size_t>(offsets.back());
    Tensor o("o", from.dtype(), std::move(shape));
    for (std::size_t p = 0; p < call.pieces.size(); ++p)
      std::memcpy(o.data() + static_cast<std::size_t>(offsets[p]) * row,
                  from.data() + row_of(call.problem, call.pieces[p].tokens, 0) * row,
                  call.pieces[p].tokens.length() * row);
    found->second = std::move(o);
  }
  if (const auto found = answer.find("state_pool"); found != answer.end()) {
    std::vector<std::size_t> slots;
    for (const PoolPiece& piece : call.pieces) slots.push_back(piece.to);
    answer.insert_or_assign("final_state", tensor::picked(found->second, 0, slots).named("final_state"));
  }
  return answer;
}

std::vector<std::size_t> slots_left_alone(const PoolCall& call) {
  std::vector<bool> is_stored(call.slots(), false);
  for (const PoolPiece& piece : call.pieces) is_stored[piece.to] = true;
  std::vector<std::size_t> slots;
  for (std::size_t slot = 0; slot < is_stored.size(); ++slot)
    if (!is_stored[slot]) slots.push_back(slot);
  return slots;
}

std::string place_in_call(const PoolCall& call, std::string_view tensor, std::vector<std::size_t>& index) {
  const bool v_first = call.problem.options.state_v_first;
  if (tensor == "final_state") {
    index[0] = call.pieces[index[0]].to;
    return place("state_pool", index, v_first);
  }
  if (tensor == "o") {
    const std::vector<std::int64_t> offsets = offsets_of(call.pieces);
    const auto token = static_cast<std::int64_t>(index[1]);
    const auto behind = std::ranges::upper_bound(offsets, token);
    const Sequence& tokens = call.pieces[static_cast<std::size_t>(behind - offsets.begin()) - 1].tokens;
    index[0] = tokens.batch, index[1] = tokens.begin + static_cast<std::size_t>(token - behind[-1]);
  }
  return place(tensor, index, v_first);
}

Problem with_inputs_rounded_to(const Problem& problem, numeric::DType dtype) {
  if (problem.pool)
    return ordinary_form({with_inputs_rounded_to(problem.pool->problem, dtype), problem.pool->states.clone(),
                          problem.pool->table});
  return with_inputs(problem, [&](const InputSlot& slot, const tensor::Tensor& tensor) {
    return slot.is_rounded ? tensor.converted_to(dtype) : tensor.clone();
  });
}

}  // namespace kda_check::kda
