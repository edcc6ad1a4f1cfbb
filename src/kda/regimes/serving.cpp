// Regimes of serving: calls on pools of states, as a server makes them (docs/serving.md).
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "kda/pool/pool.hpp"
#include "kda/regimes/draft.hpp"

namespace kda_check::kda::regimes {

namespace {

/// The numbers of a call that are drawn one after the other.
class Numbers {
 public:
  explicit Numbers(const Settings& settings)
      : random_(settings.seed(), (std::uint64_t{1} << 48) + settings.count("step")) {}
  /// From `least` to `most`.
  std::size_t of(std::size_t least, std::size_t most) {
    return least + static_cast<std::size_t>(random_.below(drawn_++, most - least + 1));
  }

 private:
  numeric::Random random_;
  std::uint64_t drawn_ = 0;
};

PaddingSlots padding_of(const Settings& settings) { return every_padding[settings.count("padding")]; }

/// Slots of a pool in the order a server hands them out: none.
std::vector<std::int64_t> shuffled_slots(std::size_t slots, PaddingSlots padding, Numbers& numbers) {
  const std::int64_t first = padding == PaddingSlots::nonpositive ? 1 : 0;
  std::vector<std::int64_t> list(slots - static_cast<std::size_t>(first));
  std::iota(list.begin(), list.end(), first);
  for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[numbers.of(0, i - 1)]);
  return list;
}

/// The log decays of its tokens.
double served_gate(const At&, const Draw& draw) { return -5 * sigmoid(draw.normal()); }

/// Rings beside all slots: the tokens behind those of the call, raw or (as if v were u) solved writes.
Tensors rings_of(const Settings& settings, std::size_t slots, std::size_t tokens_of_call) {
  Draft draft(settings);
  draft.T = tokens_of_call + slots * settings.count("ring");
  draft.g = draft.gates(Stream::g, served_gate);
  draft.drop_tokens(tokens_of_call);
  const Problem drawn = draft.finish();
  const bool is_solved = settings.count("solved") > 0;
  Tensors rings;
  for (const auto& [name, tokens] : {std::pair{"ring_k", &drawn.k},
                                     {"ring_g", &drawn.g},
                                     {is_solved ? "ring_u" : "ring_v", &drawn.v},
                                     {"ring_beta", &drawn.beta}}) {
    if (is_solved && tokens == &drawn.beta) continue;
    tensor::Shape shape = tokens->shape();
    shape[0] = slots, shape[1] = settings.count("ring");
    // u is stored as g is.
    tensor::Tensor ring(name, (is_solved && tokens == &drawn.v ? drawn.g : *tokens).dtype(),
                        std::move(shape));
    std::memcpy(ring.data(), tokens->converted_to(ring.dtype()).data(), ring.bytes());
    rings.emplace(name, std::move(ring));
  }
  return rings;
}

/// The scales of a pool, by rows, columns, heads or tiles of a quarter of either.
tensor::Shape scale_shape(const tensor::Shape& pool, std::size_t scales) {
  const auto quarter = [](std::size_t extent) { return extent % 4 == 0 ? std::size_t{4} : std::size_t{1}; };
  tensor::Shape shape = pool;
  if (scales != 0) shape[2] = scales == 3 ? quarter(pool[2]) : 1;
  if (scales != 1) shape[3] = scales == 3 ? quarter(pool[3]) : 1;
  return shape;
}

/// States become codes: all of them are stored where they are.
void quantise(PoolCall& call, const Settings& settings) {
  const CodeFormat format = every_code_format[settings.count("codes") - 1];
  const double most = largest_code(format), largest = settings["largest"] > 0 ? settings["largest"] : most;
  if (largest > most) throw Error(ErrorKind::usage, "serve: no code is as large as largest");
  call.table.quantisation = {format, largest};
  call.codes = call.states.converted_to(numeric::DType::fp32);
  call.scale = tensor::Tensor("state_scale", numeric::DType::fp32,
                              scale_shape(call.codes.shape(), settings.count("scales")));
  std::vector<PoolPiece> pieces;
  for (std::size_t slot = 0; slot < call.codes.shape()[0]; ++slot)
    pieces.push_back({{}, slot, slot, false, {}, {}});
  QuantisedPool pool = quantised(call, pieces, call.states);
  call.states = std::move(pool.codes), call.scale = std::move(pool.scale), call.codes = {};
  if (settings.count("fixed") > 0) call.table.quantisation->largest = 0;
}

/// One call: with drafts every sequence has a few tokens and a slot for each; without, a quarter of them are
/// being prefilled and the others have one token; the first row of a call with drafts has no draft, behind
/// two accepted tokens. Where there is padding about a fifth of the rows are, and the last, what is stored
/// for which nobody overwrites; where tokens may be about a third of the drafts end with one.
Problem serve(const Settings& settings) {
  Numbers numbers(settings);
  const std::size_t rows = settings.count("sequences"), columns = settings.count("drafts");
  SlotTable table;
  RingTable& ring = table.ring;
  ring.rows = settings.count("ring"), ring.folds_call = settings.count("folds_call") > 0;
  if (settings.count("flush") > 0) ring.flush = settings.count("flush");
  if (settings.count("codes") > 0 && settings.count("apart") > 1)
    throw Error(ErrorKind::usage, "serve: a quantised pool has none beside it");
  const bool is_integer = settings.count("codes") % 3 > 0;
  if (settings.count("draws") > (is_integer ? 2 : settings.count("codes") > 0 || settings["state_bits"] < 32))
    throw Error(ErrorKind::usage, "serve: draws=1 needs codes or state_bits=16, draws=2 codes=1 or codes=2");
  if (ring.rows > 0 && (columns > 0 || settings.count("apart") > 0))
    throw Error(ErrorKind::usage, "serve: beside a ring there are no drafts and no apart");
  const std::size_t most = ring.rows > 0 ? std::min(settings.count("T"), (ring.rows + 1) / 2)
                                         : settings.count("T"),
                    of_row = std::max<std::size_t>(1, columns);
  table.columns = columns, table.padding = padding_of(settings);
  if (settings.count("draws") > 0) table.rounding = CodeRounding::stochastic;
  if (settings.count("draws") > 1) table.seed = settings.seed();
  const std::size_t apart = settings.count("apart"),
                    slots = std::max(settings.count("slots"), (apart > 0 ? 2 : 1) * rows * of_row + 1);
  const std::vector<std::int64_t> free = shuffled_slots(slots, table.padding, numbers);
  Draft draft(settings);
  draft.cu_seqlens = {0};
  for (std::size_t n = 0; n < rows; ++n) {
    const bool is_padding =
        n > 0 && table.padding != PaddingSlots::none && (numbers.of(0, 4) == 0 || n + 1 == rows);
    const bool is_step = n == 0 && columns > 1;
    const std::size_t length = is_padding || is_step   ? 1
                               : columns > 0           ? numbers.of(1, columns)
                               : numbers.of(0, 3) == 0 ? numbers.of(1, most)
                                                       : 1;
    draft.cu_seqlens.push_back(draft.cu_seqlens.back() + static_cast<std::int64_t>(length));
    if (ring.rows > 0) {  // a ring that is not folded has room
      const std::size_t held = numbers.of(0, ring.rows), room = ring.rows - length;
      ring.length.push_back(static_cast<std::int64_t>(ring.folds(held) ? held : std::min(held, room)));
      ring.base.push_back(static_cast<std::int64_t>(numbers.of(0, ring.rows - 1)));
    }
    const bool of_tokens = columns > 0 && table.padding == PaddingSlots::negative_tokens;
    if (of_tokens)
      table.accepted.push_back(static_cast<std::int64_t>(numbers.of(is_step ? 2 : 0, columns + 1)));
    else if (columns > 0)
      table.accepted.push_back(static_cast<std::int64_t>(numbers.of(is_step ? 2 : 1, columns)));
    for (std::size_t i = 0; i < of_row; ++i)
      table.indices.push_back(!is_padding                                  ? free[n * of_row + i]
                              : table.padding == PaddingSlots::nonpositive ? 0
                                                                           : -1);
    // A token that is padding is in no column that the row may begin at.
    const auto read_at = static_cast<std::size_t>(of_tokens ? table.accepted.back() : 0);
    if (of_tokens && !is_padding && length > 1 && read_at < length && numbers.of(0, 2) == 0)
      table.indices[n * of_row + length - 1] = -1;
  }
  if (settings.count("new") > 0)
    for (std::size_t n = 0; n < rows; ++n) table.has_state.push_back(n > 0 && numbers.of(0, 2) > 0);
  if (settings.count("zeros") > 0) table.padding_output = PaddingOutput::zero;
  // The slots behind those that are read; a fifth of the states are stored nowhere, where that has a number.
  table.output_columns = apart > 0 ? columns : 0;
  for (std::size_t i = 0; apart > 0 && i < rows * of_row; ++i) {
    const bool is_stored = table.padding == PaddingSlots::none || numbers.of(0, 4) > 0;
    const std::int64_t nowhere = table.padding == PaddingSlots::nonpositive ? 0 : -1;
    table.outputs.push_back(is_stored ? free[rows * of_row + i] : nowhere);
  }
  draft.T = static_cast<std::size_t>(draft.cu_seqlens.back());
  draft.N = slots;
  draft.g = draft.gates(Stream::g, served_gate);
  draft.initial_state = draft.states([](const At&, const Draw& draw) { return draw.normal(); });
  const std::vector<double> states = std::exchange(draft.initial_state, {});
  draft.N = rows;
  Problem tokens = draft.finish();
  const numeric::DType stored = settings["state_bits"] < 32              ? numeric::DType::bf16
                                : settings.dtype == numeric::DType::fp64 ? numeric::DType::fp64
                                                                         : numeric::DType::fp32;
  tensor::Tensor pool("state_pool", stored, {slots, draft.HV, draft.K, draft.V});
  for (std::size_t i = 0; i < pool.size(); ++i) pool.set(i, settings["size"] * states[i]);
  PoolCall call{std::move(tokens), std::move(pool), std::move(table)};
  if (apart > 1) {
    call.source = call.states.clone();
    for (std::size_t i = 0; i < call.states.size(); ++i) call.states.set(i, -call.source->value(i));
  }
  if (settings.count("codes") > 0) quantise(call, settings);
  if (call.table.ring.rows > 0) call.ring = rings_of(settings, slots, draft.T);
  return ordinary_form(std::move(call));
}

}  // namespace

std::vector<Recipe> serving_recipes() {
  return {{"serve",
           "a call of a server on its pool of states: prefill and single tokens, or drafts",
           "",
           {fixed("B", 1),
            shared("T", 40),
            shared("K", 64),
            shared("V", 64),
            fixed("loss", 0),
            {"sequences", "rows of the batch", 8, 1, 256, true},
            {"drafts", "columns of the table of slots; 0: one slot a sequence", 0, 0, 8, true},
            {"padding", "0: none; 1: slots below 0; 2: slot 0 too; 3: as 1, tokens too", 1, 0, 3, true},
            {"slots", "of the pool, more where they are needed", 24, 1, 4096, true},
            {"state_bits", "32, or 16: the pool is in bf16", 32, 16, 32, true},
            {"new", "1: some requests are new: has_initial_state is 0, and their slots were others'", 0, 0, 1,
             true},
            {"apart", "1: states are stored in other slots than they are read; 2: in another pool", 0, 0, 2,
             true},
            {"zeros", "1: o of padding must be zero", 0, 0, 1, true},
            {"ring", "rows of a ring of writes beside every slot", 0, 0, 256, true},
            {"solved", "1: the rings hold u, not v and beta", 0, 0, 1, true},
            {"flush", "rings of so many rows are folded into their state; 0: none", 0, 0, 256, true},
            {"folds_call", "1: with the tokens of the call", 0, 0, 1, true},
            {"codes", "the pool is quantised; 1: int8, 2: int16, 3: e4m3", 0, 0, 3, true},
            {"scales", "0: one for each row, 1: column, 2: head, 3: tile", 0, 0, 3, true},
            {"largest", "a scale is the largest magnitude of its block over this; 0: over the largest code",
             0, 0, 32767, true},
            {"fixed", "1: scales are fixed", 0, 0, 1, true},
            {"draws", "1: codes, or states in 16 bits, are rounded stochastically; 2: by a seed that is told",
             0, 0, 2, true},
            {"step", "which call of the server", 1, 0, 0x1p53, true}},
           serve}};
}

}  // namespace kda_check::kda::regimes
