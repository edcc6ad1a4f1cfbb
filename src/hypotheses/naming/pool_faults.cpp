#include "hypotheses/naming/pool_faults.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "kda/problem/excerpt.hpp"
#include "tensor/rearranged.hpp"

namespace kda_check::hypotheses {

namespace {

using kda::PaddingSlots;
using kda::PoolCall;
using kda::PoolPiece;
using tensor::Tensor;
using Pieces = PoolFault::Pieces;

constexpr std::size_t no_piece = PoolPiece::nowhere;

std::byte* slot_of(Tensor& pool, std::size_t slot) {
  return pool.data() + slot * (pool.bytes() / pool.shape()[0]);
}
/// Of padding and behind a row's tokens a table holds any number.
void zero_slot(Tensor& pool, std::size_t slot) {
  const std::size_t bytes = pool.bytes() / pool.shape()[0];
  if (slot < pool.shape()[0]) std::memset(slot_of(pool, slot), 0, bytes);
}

bool is_step(const PoolCall& call, const PoolPiece& piece) {
  return call.table.columns == 0 && piece.tokens.length() == 1;
}
bool is_prefill(const PoolCall& call, const PoolPiece& piece) {
  return call.table.columns == 0 && piece.tokens.length() > 1;
}
bool is_padded(const PoolCall& call) {
  return std::ranges::any_of(call.table.indices, [](std::int64_t slot) { return slot < 0; }) ||
         call.table.padding == PaddingSlots::nonpositive;
}
bool has_negative_padding(const PoolCall& call) {
  return is_padded(call) && call.table.padding == PaddingSlots::negative;
}
/// No slot, where the table has none there.
std::size_t entry(const PoolCall& call, std::size_t sequence, std::size_t column) {
  const std::size_t columns = std::max<std::size_t>(1, call.table.columns);
  const std::size_t at = sequence * columns + column;
  const bool is_there = column < columns && at < call.table.indices.size();
  const std::int64_t slot = is_there ? call.table.indices[at] : -1;
  return slot >= 0 && static_cast<std::size_t>(slot) < call.slots() ? static_cast<std::size_t>(slot)
                                                                    : no_piece;
}
/// From 1 to the columns of the table.
std::size_t accepted(const PoolCall& call, std::size_t sequence) {
  if (call.table.accepted.empty()) return 1;
  const auto columns = static_cast<std::int64_t>(std::max<std::size_t>(1, call.table.columns));
  return static_cast<std::size_t>(std::clamp<std::int64_t>(call.table.accepted[sequence], 1, columns));
}
bool is_draft(const PoolCall& call, const PoolPiece&) { return call.table.columns > 0; }
bool is_no_draft(const PoolCall& call, const PoolPiece&) { return call.table.columns == 0; }
bool any(const PoolCall&, const PoolPiece&) { return true; }
bool has_outputs(const PoolCall& call) { return !call.table.outputs.empty(); }
bool has_source(const PoolCall& call) { return call.source.has_value(); }
bool is_quantised(const PoolCall& call) { return call.is_quantised(); }
std::size_t scales_of_slot(const PoolCall& call) { return call.scale.size() / call.slots(); }
/// Which has a scale for each row or column, of as many.
bool has_axis(const PoolCall& call) {
  if (!call.is_quantised()) return false;
  const tensor::Shape &codes = call.codes.shape(), &scale = call.scale.shape();
  return codes[2] == codes[3] && (scale[2] > 1) != (scale[3] > 1);
}
bool has_rings(const PoolCall& call) { return !call.ring.empty(); }
bool is_folded(const PoolCall& call, const PoolPiece& piece) {
  const kda::RingTable& ring = call.table.ring;
  return ring.rows > 0 && ring.folds(static_cast<std::size_t>(ring.length[piece.tokens.index]));
}
std::size_t first_row(const PoolCall& call, const PoolPiece& piece) {
  return piece.from * call.table.ring.rows;
}

/// One state: `size` elements from `first` on.
void zero(const PoolCall&, Tensor& states, std::size_t first, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) states.set(first + i, 0);
}
void through_bf16(const PoolCall&, Tensor& states, std::size_t first, std::size_t size) {
  Tensor narrow("state", numeric::DType::bf16, {size});
  for (std::size_t i = 0; i < size; ++i) {
    narrow.set(i, states.value(first + i));
    states.set(first + i, narrow.value(i));
  }
}
/// Of K rows and as many columns; others stay.
void transpose(const PoolCall& call, Tensor& states, std::size_t first, std::size_t size) {
  const std::size_t K = call.problem.dimensions().K, V = call.problem.dimensions().V;
  if (K != V) return;
  for (std::size_t head = first; head < first + size; head += K * V)
    for (std::size_t k = 0; k < K; ++k)
      for (std::size_t v = 0; v < k; ++v) {
        const std::size_t a = head + k * V + v, b = head + v * V + k;
        const double kept = states.value(a);
        states.set(a, states.value(b)), states.set(b, kept);
      }
}

/// Around the end.
void take_slots_of_next(Pieces& pieces) {
  if (pieces.empty()) return;
  const PoolPiece first = pieces.front();
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const PoolPiece& next = p + 1 < pieces.size() ? pieces[p + 1] : first;
    pieces[p].from = next.from, pieces[p].to = next.to;
  }
}

// --- what a fault is made of

using Which = bool (*)(const PoolCall&, const PoolPiece&);
using StateChange = void (*)(const PoolCall&, Tensor& states, std::size_t first, std::size_t size);

auto change_of(Which which, StateChange change) {
  return [which, change](const PoolCall& call, const Pieces& pieces, Tensor& states) {
    const std::size_t size = states.size() / pieces.size();
    for (std::size_t p = 0; p < pieces.size(); ++p)
      if (which(call, pieces[p])) change(call, states, p * size, size);
  };
}
/// The states that some pieces read, or store, are others.
PoolFault reads(const char* name, const char* what, Which which, StateChange change) {
  return {.name = name, .what = what, .reads = change_of(which, change)};
}
PoolFault stores(const char* name, const char* what, Which which, StateChange change) {
  return {.name = name, .what = what, .stores = change_of(which, change)};
}
PoolFault slots(const char* name, const char* what, void (*change)(const PoolCall&, Pieces&)) {
  return {.name = name, .what = what, .slots = change};
}
/// The slots of some pieces, one by one.
PoolFault slots(const char* name, const char* what, Which which,
                void (*change)(const PoolCall&, PoolPiece&)) {
  return {.name = name, .what = what, .slots = [which, change](const PoolCall& call, Pieces& pieces) {
            for (PoolPiece& piece : pieces)
              if (which(call, piece)) change(call, piece);
          }};
}
/// What is replayed of rings.
PoolFault replays(const char* name, const char* what, void (*change)(const PoolCall&, PoolPiece&)) {
  PoolFault fault = slots(name, what, any, change);
  fault.needs = has_rings;
  return fault;
}
/// What is wrong with codes and scales that are stored.
PoolFault quantises(const char* name, const char* what,
                    kda::Quantiser (*quantiser)(const PoolCall&, const Pieces&, const Tensor&)) {
  return {.name = name, .what = what, .quantiser = quantiser, .needs = is_quantised};
}
/// By which scale, of those of all slots, a code is read: that of `block` of its slot, or another.
PoolFault reads_scale(const char* name, const char* what, bool (*needs)(const PoolCall&),
                      std::size_t (*scale)(const PoolCall&, std::size_t slot, std::size_t block,
                                           std::size_t element)) {
  return {.name = name,
          .what = what,
          .reads =
              [scale](const PoolCall& call, const Pieces& pieces, Tensor& states) {
                const std::vector<std::size_t> blocks =
                    kda::blocks_of(call.codes.shape(), call.scale.shape());
                for (std::size_t p = 0, at = 0; p < pieces.size(); ++p)
                  for (std::size_t i = 0; i < blocks.size(); ++i, ++at)
                    if (!pieces[p].from_zero)
                      states.set(at, call.codes.value(pieces[p].from * blocks.size() + i) *
                                         call.scale.value(scale(call, pieces[p].from, blocks[i], i)));
              },
          .needs = needs};
}
PoolFault behind(const char* name, const char* what, void (*change)(const PoolCall&, Tensor& pool)) {
  return {.name = name, .what = what, .behind = change};
}

/// As if all rows were computed at once, and this one stored last.
void compute_padding_in_last_slot(const PoolCall& call, Tensor& pool) {
  if (!has_negative_padding(call) || call.padding.empty()) return;
  kda::Sequence last = call.padding.back();
  const std::size_t slot = call.slots() - 1, bytes = pool.bytes() / call.slots();
  last.index = std::min(slot, call.read_from().shape()[0] - 1);
  kda::RunOptions options;
  options.dtype = numeric::DType::fp64;
  const kda::Problem row =
      kda::excerpt(call.problem, {last}, kda::Layout::packed, {&call.read_from(), nullptr});
  const Tensor state = kda::run_recurrent(row, options).final_state.converted_to(pool.dtype());
  std::memcpy(slot_of(pool, slot), state.data(), bytes);
}

/// States that were stored, by slot, of a kernel that does not look whether somebody else has it now.
thread_local std::map<std::size_t, std::vector<std::byte>> remembered;

void read_remembered(const PoolCall& call, const Pieces& pieces, Tensor& states) {
  // In a new pool nothing is left of what was stored.
  const std::size_t size = states.size() / pieces.size(), bytes = states.bytes() / pieces.size();
  const std::vector<std::size_t> alone = kda::slots_left_alone(call);
  const bool is_new = std::ranges::none_of(alone, [&](std::size_t slot) {
    const auto found = remembered.find(slot);
    return found != remembered.end() && found->second.size() == bytes &&
           std::memcmp(found->second.data(), call.states.data() + slot * bytes, bytes) == 0;
  });
  if (is_new) remembered.clear();
  for (std::size_t p = 0; p < pieces.size(); ++p)
    if (const auto found = remembered.find(pieces[p].from);
        found != remembered.end() && found->second.size() == bytes)
      std::memcpy(states.at(p * size), found->second.data(), bytes);
}
void remember(const PoolCall& call, Tensor& pool) {
  const std::size_t bytes = pool.bytes() / call.slots();
  for (const PoolPiece& p : call.pieces)
    if (p.is_stored()) remembered[p.to].assign(slot_of(pool, p.to), slot_of(pool, p.to) + bytes);
}

/// Of the call before, of a kernel whose cursor is not moved back.
thread_local Pieces last_pieces;

void replay_what_was_taken_back(const PoolCall&, Pieces& pieces) {
  const Pieces now = pieces;
  for (PoolPiece& piece : pieces)
    for (const PoolPiece& last : last_pieces) {
      std::vector<std::size_t> all = last.held;
      all.insert(all.end(), last.written.begin(), last.written.end());
      const bool is_part = piece.held.size() > last.held.size() && piece.held.size() < all.size();
      if (is_part && std::equal(piece.held.begin(), piece.held.end(), all.begin()))
        piece.held = std::move(all);
    }
  last_pieces = now;
}

std::vector<PoolFault> all_faults() {
  return {
      stores("pool_in_bf16", "every state is stored through bf16", any, through_bf16),
      stores("steps_in_bf16", "a step of decoding stores its state through bf16", is_step, through_bf16),
      reads("steps_from_zero", "a step of decoding starts from zero", is_step, zero),
      reads("prefill_from_zero", "prefill starts from zero", is_prefill, zero),
      reads("pool_read_transposed", "states are read in the other layout", any, transpose),
      stores("pool_stored_transposed", "states are stored in the other layout", any, transpose),
      stores("drafts_transposed", "states of a draft are stored in the other layout", is_draft, transpose),
      slots("one_accepted_more", "one accepted token more is taken for accepted", is_draft,
            [](const PoolCall& call, PoolPiece& p) {
              if (accepted(call, p.tokens.index) < call.table.columns)
                p.from = entry(call, p.tokens.index, accepted(call, p.tokens.index));
            }),
      slots("accepted_ignored", "the number of accepted tokens is not looked at", is_draft,
            [](const PoolCall& call, PoolPiece& p) { p.from = entry(call, p.tokens.index, 0); }),
      slots("rejected_kept", "a draft goes on from its last state, accepted or not", is_draft,
            [](const PoolCall& call, PoolPiece& p) {
              p.from = entry(call, p.tokens.index, call.table.columns - 1);
            }),
      slots("draft_in_first_slot", "all states of a draft are stored in its first slot", is_draft,
            [](const PoolCall& call, PoolPiece& p) { p.to = entry(call, p.tokens.index, 0); }),
      slots("accepted_ignored_in_steps", "a row of one token does not look at the number of accepted tokens",
            is_draft,
            [](const PoolCall& call, PoolPiece& p) {
              if (call.problem.sequences().at(p.tokens.index).length() == 1)
                p.from = entry(call, p.tokens.index, 0);
            }),
      slots("accepted_of_first_row", "the number of accepted tokens is that of the first row", is_draft,
            [](const PoolCall& call, PoolPiece& p) {
              p.from = entry(call, p.tokens.index, accepted(call, call.pieces.front().tokens.index) - 1);
            }),
      slots("rollback_late", "a draft is rolled back one token late", is_draft,
            [](const PoolCall& call, PoolPiece& p) {
              if (p.tokens.length() < call.table.columns)
                p.to = entry(call, p.tokens.index, p.tokens.length());
            }),
      slots("last_of_draft_alone", "of a draft the last state alone is stored",
            [](const PoolCall& call, Pieces& pieces) {
              for (std::size_t p = 0; p + 1 < pieces.size(); ++p)
                if (call.table.columns > 0 && pieces[p].tokens.index == pieces[p + 1].tokens.index)
                  pieces[p].to = no_piece;
            }),
      behind("prefix_overwritten", "a draft stores its last state where it read the first",
             [](const PoolCall& call, Tensor& pool) {
               if (call.table.columns == 0) return;
               for (const PoolPiece& p : call.pieces)
                 if (p.is_stored() && p.from < call.slots())
                   std::memcpy(slot_of(pool, p.from), slot_of(pool, p.to), pool.bytes() / call.slots());
             }),
      slots("rows_for_slots", "rows are taken for slots", is_no_draft,
            [](const PoolCall& call, PoolPiece& p) {
              p.from = p.to = std::min(p.tokens.index, call.slots() - 1);
            }),
      slots("offsets_wrap", "offsets of slots wrap", is_no_draft,
            [](const PoolCall&, PoolPiece& p) { p.from %= 5, p.to %= 5; }),
      behind("padding_in_last_slot", "padding is stored in the last slot",
             [](const PoolCall& call, Tensor& pool) {
               if (has_negative_padding(call)) zero_slot(pool, call.slots() - 1);
             }),
      {.name = "padding_computed",
       .what = "a row of padding is computed, from the last slot, and stored there",
       .behind = compute_padding_in_last_slot,
       .needs = has_negative_padding},
      behind("draft_padding_in_last_slot", "padding between drafts is stored in the last slot",
             [](const PoolCall& call, Tensor& pool) {
               if (has_negative_padding(call) && call.table.columns > 0) zero_slot(pool, call.slots() - 1);
             }),
      behind("number_accepted_not_checked",
             "a row of padding whose number of accepted tokens is 0 is stored in the slots of its row",
             [](const PoolCall& call, Tensor& pool) {
               for (std::size_t n = 0; n < call.table.accepted.size(); ++n)
                 for (std::size_t column = 0; column < call.table.columns && call.table.accepted[n] == 0;
                      ++column)
                   zero_slot(pool, entry(call, n, column));
             }),
      behind("empty_row_zeroed", "the state of a row without tokens is zeroed",
             [](const PoolCall& call, Tensor& pool) {
               for (const kda::Sequence& sequence : call.problem.sequences())
                 if (sequence.length() == 0) zero_slot(pool, entry(call, sequence.index, 0));
             }),
      behind("padding_in_slot_0", "padding is stored in slot 0",
             [](const PoolCall& call, Tensor& pool) {
               if (call.table.padding == PaddingSlots::nonpositive) zero_slot(pool, 0);
             }),
      slots("rows_without_padding", "rows are counted without padding",
            [](const PoolCall& call, Pieces& pieces) {
              if (is_padded(call) && call.table.columns == 0) take_slots_of_next(pieces);
            }),
      slots("slot_of_next_row", "each row has the slot of the next one",
            [](const PoolCall& call, Pieces& pieces) {
              if (call.table.columns == 0) take_slots_of_next(pieces);
            }),
      slots("requests_swapped", "two requests are swapped",
            [](const PoolCall&, Pieces& pieces) {
              if (pieces.size() > 1) std::swap(pieces[0].to, pieces[1].to);
            }),
      behind("next_slot_zeroed", "the slot behind is zeroed",
             [](const PoolCall& call, Tensor& pool) {
               const std::vector<std::size_t> alone = kda::slots_left_alone(call);
               for (const PoolPiece& p : call.pieces)
                 if (std::ranges::find(alone, p.to + 1) != alone.end()) zero_slot(pool, p.to + 1);
             }),
      slots("last_row_not_stored", "the last row of a call is not stored",
            [](const PoolCall&, Pieces& pieces) { pieces.back().to = no_piece; }),
      slots("slot_0_for_padding", "slot 0 is taken for padding", any,
            [](const PoolCall&, PoolPiece& p) {
              if (p.to == 0) p.to = no_piece;
            }),
      {.name = "stale_slot",
       .what = "a slot has the state of who had it before",
       .reads = read_remembered,
       .behind = remember,
       .is_candidate = false},
      {.name = "stored_where_read",
       .what = "states are stored in the slots of state_indices, where they were read: output_indices says "
               "others",
       .slots =
           [](const PoolCall& call, Pieces& pieces) {
             for (PoolPiece& piece : pieces)
               if (piece.from < call.slots()) piece.to = piece.from;
           },
       .needs = has_outputs},
      {.name = "read_where_stored",
       .what =
           "states are read in the slots of output_indices, where they are stored: state_indices says others",
       .slots =
           [](const PoolCall& call, Pieces& pieces) {
             for (PoolPiece& piece : pieces)
               if (piece.to < call.read_from().shape()[0]) piece.from = piece.to;
           },
       .needs = has_outputs},
      {.name = "source_not_read",
       .what = "states are read in state_pool, where they are stored: state_source has them",
       .reads =
           [](const PoolCall& call, const Pieces& pieces, Tensor& states) {
             const std::size_t size = states.size() / pieces.size();
             for (std::size_t p = 0; p < pieces.size(); ++p)
               for (std::size_t i = 0; i < size && pieces[p].from < call.slots(); ++i)
                 states.set(p * size + i, call.states.value(pieces[p].from * size + i));
           },
       .needs = has_source},
      replays("ring_not_replayed", "the tokens of a ring are not replayed",
              [](const PoolCall&, PoolPiece& p) { p.held.clear(); }),
      replays("ring_row_too_few", "the last token of a ring is not replayed",
              [](const PoolCall&, PoolPiece& p) {
                if (!p.held.empty()) p.held.pop_back();
              }),
      replays("ring_row_too_many", "a row more than a ring holds is replayed",
              [](const PoolCall& call, PoolPiece& p) {
                const std::size_t rows = call.table.ring.rows,
                                  at = p.held.empty() ? 0 : p.held.back() % rows + 1;
                if (p.held.size() < rows) p.held.push_back(first_row(call, p) + at % rows);
              }),
      replays("ring_from_row_0", "a ring is replayed from row 0: ring_base says where it begins",
              [](const PoolCall& call, PoolPiece& p) {
                for (std::size_t i = 0; i < p.held.size(); ++i) p.held[i] = first_row(call, p) + i;
              }),
      replays("ring_does_not_wrap", "behind the last row of a ring it is replayed again, and not row 0",
              [](const PoolCall& call, PoolPiece& p) {
                for (std::size_t i = 1; i < p.held.size(); ++i)
                  if (p.held[i] % call.table.ring.rows == 0 || p.held[i] < p.held[i - 1])
                    p.held[i] = p.held[i - 1];
              }),
      replays("ring_of_next_slot", "the ring of the next slot is replayed",
              [](const PoolCall& call, PoolPiece& p) {
                for (std::size_t& row : p.held)
                  row = (row + call.table.ring.rows) % (call.slots() * call.table.ring.rows);
              }),
      replays("ring_folded_twice", "a ring that is folded is replayed twice",
              [](const PoolCall& call, PoolPiece& p) {
                const std::vector<std::size_t> held = p.held;
                if (is_folded(call, p)) p.held.insert(p.held.end(), held.begin(), held.end());
              }),
      reads_scale("scale_of_next_slot", "codes are read by the scale of the next slot", is_quantised,
                  [](const PoolCall& call, std::size_t slot, std::size_t block, std::size_t) {
                    return (slot + 1) % call.slots() * scales_of_slot(call) + block;
                  }),
      reads_scale("scale_of_other_axis", "codes are read by the scale of the other axis", has_axis,
                  [](const PoolCall& call, std::size_t slot, std::size_t, std::size_t element) {
                    const tensor::Shape& scale = call.scale.shape();
                    const std::size_t width = call.codes.shape()[3], height = call.codes.shape()[2],
                                      row = element / width % height, column = element % width;
                    return (slot * scale[1] + element / width / height) * scale[2] * scale[3] +
                           (scale[2] > 1 ? column % scale[2] : row % scale[3]);
                  }),
      quantises("scale_not_updated", "states are stored by the scales that their slots had",
                [](const PoolCall& call, const Pieces&, const Tensor&) {
                  return kda::Quantiser{
                      .scale = [&call](std::size_t at, double) { return call.scale.value(at); }};
                }),
      quantises("scale_before_update", "scales are those of the states before the call's tokens",
                [](const PoolCall& call, const Pieces& pieces, const Tensor& read) {
                  const auto before = std::make_shared<const Tensor>(kda::right_scale(call, pieces, read));
                  return kda::Quantiser{
                      .scale = [before](std::size_t at, double) { return before->value(at); }};
                }),
      quantises("codes_by_twice_the_scale", "scales of states are twice as large as they are to be",
                [](const PoolCall&, const Pieces&, const Tensor&) {
                  return kda::Quantiser{.scale = [](std::size_t, double right) { return 2 * right; }};
                }),
      quantises(
          "codes_truncated", "codes are rounded towards zero",
          [](const PoolCall&, const Pieces&, const Tensor&) { return kda::Quantiser{.truncates = true}; }),
      {.name = "ring_not_taken_back",
       .what = "tokens that were not accepted are replayed",
       .slots = [](const PoolCall& call, Pieces& pieces) { replay_what_was_taken_back(call, pieces); },
       .needs = has_rings,
       .is_candidate = false},
      {.name = "stale_start",
       .what = "a new request starts from what its slot held",
       .slots =
           [](const PoolCall&, Pieces& pieces) {
             for (PoolPiece& piece : pieces) piece.from_zero = false;
           },
       .is_candidate = false},
  };
}

}  // namespace

std::span<const PoolFault> pool_faults() {
  static const std::vector<PoolFault> list = all_faults();
  return list;
}

kda::Answer with_pool_fault(const PoolFault& fault, const kda::Problem& problem,
                            const kda::RunOptions& options) {
  const kda::Variant& healthy = kda::variant_named("recurrent");
  if (!problem.pool || (fault.needs != nullptr && !fault.needs(*problem.pool)))
    return healthy.run(problem, options);
  const PoolCall& call = *problem.pool;
  Pieces pieces = call.pieces;
  if (fault.slots) fault.slots(call, pieces);
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    if (pieces[p].from >= call.read_from().shape()[0]) pieces[p].from = call.pieces[p].from;
    // Who reads another slot reads its ring.
    for (std::size_t& row : pieces[p].held)
      if (pieces[p].from != call.pieces[p].from)
        row = first_row(call, pieces[p]) + row % call.table.ring.rows;
  }
  std::vector<std::size_t> stored_in;
  Tensor states = kda::states_read(call, pieces);
  if (fault.reads) fault.reads(call, pieces, states);
  kda::Answer answer = healthy.run(kda::of_pieces(call, pieces, states), options);
  if (has_rings(call)) answer.o = kda::rows_of(call, kda::output_of(call, answer.o, pieces), call.pieces);
  if (fault.stores) fault.stores(call, pieces, answer.final_state);
  if (call.is_quantised()) {
    kda::QuantisedPool pool =
        kda::quantised(call, pieces, answer.final_state,
                       fault.quantiser ? fault.quantiser(call, pieces, states) : kda::Quantiser{});
    answer.pool = std::move(pool.codes), answer.scale = std::move(pool.scale);
  } else {
    const Tensor stored = kda::as_stored(call, pieces, answer.final_state);
    answer.pool = call.states.clone();
    const std::size_t bytes = call.states.bytes() / call.slots();
    for (std::size_t p = 0; p < pieces.size(); ++p)
      if (pieces[p].to < call.slots())
        std::memcpy(slot_of(answer.pool, pieces[p].to), stored.data() + p * bytes, bytes);
  }
  if (fault.behind) fault.behind(call, answer.pool);
  for (const PoolPiece& piece : call.pieces) stored_in.push_back(piece.is_stored() ? piece.to : 0);
  Tensor found = tensor::picked(call.is_quantised() ? kda::dequantised(answer.pool, answer.scale)
                                                    : answer.pool.converted_to(answer.final_state.dtype()),
                                0, stored_in)
                     .named("final_state");
  answer.final_state = answer.final_state.converted_to(found.dtype());
  for (std::size_t p = 0; p < pieces.size(); ++p)
    if (!call.pieces[p].is_stored())
      std::memcpy(slot_of(found, p), slot_of(answer.final_state, p), found.bytes() / pieces.size());
  answer.final_state = std::move(found);
  return answer;
}

}  // namespace kda_check::hypotheses
