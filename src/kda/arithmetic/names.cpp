// The words of --arithmetic: one list for each axis, read both ways.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/append.hpp"
#include "base/error.hpp"
#include "base/names.hpp"
#include "kda/arithmetic/arithmetic.hpp"
#include "kda/arithmetic/axis_numbers.hpp"
#include "kda/arithmetic/launch_words.hpp"
#include "kda/arithmetic/presets.hpp"
#include "kda/arithmetic/stored_words.hpp"
#include "kda/arithmetic/value_names.hpp"

namespace kda_check::kda {

namespace {

constexpr ValueName<Contraction> contractions[] = {{Contraction::fused, "fused"},
                                                   {Contraction::separate, "separate"}};
constexpr ValueName<Exponential> exponentials[] = {{Exponential::exact, "exact"},
                                                   {Exponential::libm, "libm"},
                                                   {Exponential::cuda, "cuda"},
                                                   {Exponential::cuda_fast, "cuda-fast"},
                                                   {Exponential::exp2_scaled, "exp2-scaled"},
                                                   {Exponential::flush, "flush"},
                                                   {Exponential::poly, "poly"},
                                                   {Exponential::xla, "xla"}};
constexpr ValueName<Special> specials[] = {{Special::ieee, "ieee"},
                                           {Special::triton, "triton"},
                                           {Special::triton_logf, "triton-logf"},
                                           {Special::fast, "fast"},
                                           {Special::fast_floor, "fast-floor"},
                                           {Special::fast_division, "fast-division"},
                                           {Special::fast_signed, "fast-signed"}};
constexpr ValueName<Subnormals> subnormal_values[] = {{Subnormals::gradual, "gradual"},
                                                      {Subnormals::flush, "flush"}};
constexpr ValueName<ReductionKind> reductions[] = {
    {ReductionKind::sequential, "sequential"},
    {ReductionKind::pairwise, "pairwise"},
    {ReductionKind::tree, "tree", Number::width},
    {ReductionKind::blocks, "blocks", Number::width},
    {ReductionKind::mma, "mma", Number::bits},
    {ReductionKind::triton, "triton", Number::bits},
    {ReductionKind::triton_rows, "triton-rows", Number::bits},
    {ReductionKind::lanes, "lanes", Number::bits},
    {ReductionKind::lanes_paired, "lanes-paired", Number::bits},
    {ReductionKind::split, "split", Number::bits},
    {ReductionKind::xla, "xla"},
    {ReductionKind::simt, "simt"},
    {ReductionKind::exact, "exact"}};
constexpr ValueName<Storage> storages[] = {{Storage::none, "none"},
                                           {Storage::upstream, "upstream"},
                                           {Storage::fla, "fla"},
                                           {Storage::triton, "triton"},
                                           {Storage::flash_kda, "flash-kda"},
                                           {Storage::h100_mma, "h100-mma"},
                                           {Storage::sglang_jax, "sglang-jax"}};
constexpr ValueName<DecayForm> decays[] = {{DecayForm::pair, "pair"},
                                           {DecayForm::pair_late, "pair-late"},
                                           {DecayForm::pair_rows, "pair-rows"},
                                           {DecayForm::pair_products, "pair-products"},
                                           {DecayForm::anchor_pair, "anchor-pair", Number::rows},
                                           {DecayForm::anchor_first, "anchor-first", Number::rows},
                                           {DecayForm::anchor_mid, "anchor-mid", Number::rows},
                                           {DecayForm::anchor_bound, "anchor-bound", Number::rows},
                                           {DecayForm::factored, "factored", Number::rows},
                                           {DecayForm::reciprocal, "reciprocal", Number::rows},
                                           {DecayForm::clamp, "clamp", Number::exponent}};
constexpr ValueName<InverseForm> inverses[] = {
    {InverseForm::substitution, "substitution"},
    {InverseForm::blocks, "blocks", Number::rows},
    {InverseForm::doubling, "doubling", Number::rows},
    {InverseForm::doubling_wide, "doubling-wide", Number::few_rows},
    {InverseForm::horner, "horner", Number::rows},
    {InverseForm::paterson, "paterson", Number::rows},
    {InverseForm::nested, "nested"},
    {InverseForm::eliminate, "eliminate", Number::few_rows},
    {InverseForm::chains, "chains", Number::few_rows},
    {InverseForm::solve, "solve", Number::few_rows}};
constexpr ValueName<Merge> merges[] = {
    {Merge::nearest, "nearest"}, {Merge::halves, "halves"}, {Merge::split, "split", Number::few_rows}};
constexpr ValueName<Accumulator> accumulators[] = {{Accumulator::fp32, "fp32"}, {Accumulator::fp16, "fp16"}};
constexpr ValueName<TailForm> tails[] = {{TailForm::difference, "difference"},
                                         {TailForm::suffix, "suffix"},
                                         {TailForm::factored, "factored"},
                                         {TailForm::factored_late, "factored-late"}};
constexpr ValueName<Gates> gate_bases[] = {
    {Gates::natural, "natural"}, {Gates::log2, "log2"}, {Gates::log2_each, "log2-each"}};
constexpr ValueName<Delta> deltas[] = {{Delta::wy, "wy"},
                                       {Delta::residual, "residual"},
                                       {Delta::chained, "chained"},
                                       {Delta::blocked, "blocked"},
                                       {Delta::fused, "fused"}};
constexpr ValueName<BetaPart> beta_parts[] = {{BetaPart::rows, "rows"},
                                              {BetaPart::rows_late, "rows-late"},
                                              {BetaPart::columns, "columns"},
                                              {BetaPart::keys, "keys"}};
constexpr ValueName<ScaledPart> scaled_parts[] = {
    {ScaledPart::scores, "scores"}, {ScaledPart::q, "q"},       {ScaledPart::q_late, "q-late"},
    {ScaledPart::output, "output"}, {ScaledPart::norm, "norm"}, {ScaledPart::before, "before"}};
constexpr ValueName<Heads> head_values[] = {{Heads::grouped, "grouped"}, {Heads::repeated, "repeated"}};
constexpr ValueName<Output> outputs[] = {
    {Output::chained, "chained"}, {Output::apart, "apart"}, {Output::fused, "fused"}};
constexpr ValueName<Readout> readouts[] = {
    {Readout::start, "start"}, {Readout::first, "first"}, {Readout::centre, "centre"}};
constexpr ValueName<Update> updates[] = {{Update::chained, "chained"},
                                         {Update::transposed, "transposed"},
                                         {Update::added, "added"},
                                         {Update::decay_fused, "decay-fused"}};
constexpr ValueName<SegmentMerge> segment_merges[] = {{SegmentMerge::none, "none"},
                                                      {SegmentMerge::sequential, "sequential", Number::parts},
                                                      {SegmentMerge::tree, "tree", Number::parts}};
constexpr ValueName<Rounding> roundings[] = {
    {Rounding::bf16, "bf16"}, {Rounding::fp16, "fp16"}, {Rounding::tf32, "tf32"}};

void set_reduction(Arithmetic& arithmetic, std::string_view value) {
  const auto& row = find_in(reductions, "reduction", value);
  const double fallback = row.number == Number::bits ? 25 : row.number == Number::none ? 0 : 32;
  arithmetic.reduction = {row.value, static_cast<int>(number_of(row.number, "reduction", value,
                                                                split_word(value).colon, fallback))};
}

void set_decay(Arithmetic& arithmetic, std::string_view value) {
  const auto& row = find_in(decays, "decay", value);
  const double number = number_of(row.number, "decay", value, split_word(value).colon,
                                  row.number == Number::exponent ? 126 : 16);
  arithmetic.decay = row.value;
  arithmetic.anchor_rows = row.number == Number::rows ? static_cast<int>(number) : 16;
  if (row.number == Number::exponent) arithmetic.clamp = number;
}

void set_segments(Arithmetic& arithmetic, std::string_view value) {
  const auto& row = find_in(segment_merges, "segments", value);
  const double fallback = row.number == Number::none ? 1 : 2;
  arithmetic.segments = {row.value, static_cast<int>(number_of(row.number, "segments", value,
                                                               split_word(value).colon, fallback))};
}

void set_inverse(Arithmetic& arithmetic, std::string_view value) {
  const auto& row = find_in(inverses, "inverse", value);
  const double fallback = row.value == InverseForm::nested ? 32 : 16;
  arithmetic.inverse_rows =
      static_cast<int>(number_of(row.number, "inverse", value, split_word(value).colon, fallback));
  arithmetic.inverse = row.value;
}

void set_merge(Arithmetic& arithmetic, std::string_view value) {
  const auto& row = find_in(merges, "merge", value);
  arithmetic.merge_rows =
      static_cast<int>(number_of(row.number, "merge", value, split_word(value).colon, 16));
  arithmetic.merge = row.value;
}

std::vector<std::string> cast_point_names() {
  std::vector<std::string> names{"products"};
  for (const CastPointRow& row : cast_point_rows()) names.emplace_back(row.name);
  return names;
}

/// One "bf16@state" of `value`.
void set_cast(CastPoints& casts, std::string_view value, std::string_view part) {
  const std::size_t at = part.find('@');
  if (at == std::string_view::npos) refuse_value("storage", value, "wanted FORMAT@STAGE+FORMAT@STAGE");
  const Rounding rounding = plain(roundings, "storage", part.substr(0, at));
  const std::string_view name = part.substr(at + 1);
  if (name.empty()) refuse_value("storage", value, "no stage named", "one of: " + join(cast_point_names()));
  bool known = false;
  for (const CastPointRow& row : cast_point_rows())
    if (row.name == name || (name == "products" && row.is_operand)) casts.*row.point = rounding, known = true;
  if (!known)
    refuse_value("storage", value, fmt::format("no stage '{}'", name), suggest(name, cast_point_names()));
}

/// "bf16@state+tf32@products"
void set_storage(Arithmetic& arithmetic, std::string_view value) {
  arithmetic.casts = {};
  if (value.find('@') == std::string_view::npos) {
    for (const auto& row : roundings)
      if (row.name == value)
        refuse_value("storage", value, "a format wants a stage",
                     fmt::format("FORMAT@STAGE, as storage={}@state; kda-check list arithmetic", value));
    arithmetic.storage = plain(storages, "storage", value);
    return;
  }
  std::size_t begin = 0, plus = 0;
  do {
    plus = value.find('+', begin);
    set_cast(arithmetic.casts, value, value.substr(begin, plus - begin));
    begin = plus + 1;
  } while (plus != std::string_view::npos);
  arithmetic.storage = Storage::named;
}

std::string storage_name(const Arithmetic& arithmetic) {
  if (arithmetic.storage != Storage::named) return std::string(name_in(storages, arithmetic.storage));
  std::string text;
  for (const CastPointRow& row : cast_point_rows())
    if (arithmetic.casts.*row.point != Rounding::none)
      append(text, "{}{}@{}", text.empty() ? "" : "+", name_in(roundings, arithmetic.casts.*row.point),
             row.name);
  return text.empty() ? "none" : text;
}

/// Who has an axis.
enum Forms : std::uint8_t { all, chunk, token };
struct AxisKey {
  std::string_view key;
  Forms forms;
  void (*set)(Arithmetic&, std::string_view);
};
constexpr AxisKey keys[] = {
    {"contraction", all,
     [](Arithmetic& a, std::string_view v) { a.contraction = plain(contractions, "contraction", v); }},
    {"exponential", all,
     [](Arithmetic& a, std::string_view v) { a.exponential = plain(exponentials, "exponential", v); }},
    {"special", all, [](Arithmetic& a, std::string_view v) { a.special = plain(specials, "special", v); }},
    {"subnormals", all,
     [](Arithmetic& a, std::string_view v) { a.subnormals = plain(subnormal_values, "subnormals", v); }},
    {"reduction", all, set_reduction},
    {"storage", all, set_storage},
    {"decay", chunk, set_decay},
    {"inverse", chunk, set_inverse},
    {"merge", chunk, set_merge},
    {"accumulator", chunk,
     [](Arithmetic& a, std::string_view v) { a.accumulator = plain(accumulators, "accumulator", v); }},
    {"tail", chunk, [](Arithmetic& a, std::string_view v) { a.tail = plain(tails, "tail", v); }},
    {"gates", chunk, [](Arithmetic& a, std::string_view v) { a.gates = plain(gate_bases, "gates", v); }},
    {"delta", all, [](Arithmetic& a, std::string_view v) { a.delta = plain(deltas, "delta", v); }},
    {"beta", chunk, [](Arithmetic& a, std::string_view v) { a.beta = plain(beta_parts, "beta", v); }},
    {"scale", all, [](Arithmetic& a, std::string_view v) { a.scale = plain(scaled_parts, "scale", v); }},
    {"heads", all, [](Arithmetic& a, std::string_view v) { a.heads = plain(head_values, "heads", v); }},
    {"output", chunk, [](Arithmetic& a, std::string_view v) { a.output = plain(outputs, "output", v); }},
    {"readout", chunk, [](Arithmetic& a, std::string_view v) { a.readout = plain(readouts, "readout", v); }},
    {"update", all, [](Arithmetic& a, std::string_view v) { a.update = plain(updates, "update", v); }},
    {"segments", chunk, set_segments},
    {"stored", token, [](Arithmetic& a, std::string_view v) { a.stored = stored_from(v); }},
    {"launch", all, [](Arithmetic& a, std::string_view v) { a.launch = launch_from(v); }}};

void set_preset(Arithmetic& arithmetic, const Preset& preset) {
  for (std::string_view rest = preset.words; !rest.empty();) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    set_axis(arithmetic, rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

}  // namespace

std::string describe(const Arithmetic& arithmetic, ArithmeticAxes axes) {
  std::string text = fmt::format(
      "contraction={} exponential={} special={} subnormals={} reduction={} storage={}",
      name_in(contractions, arithmetic.contraction), name_in(exponentials, arithmetic.exponential),
      name_in(specials, arithmetic.special), name_in(subnormal_values, arithmetic.subnormals),
      numbered(reductions, arithmetic.reduction.kind, arithmetic.reduction.width), storage_name(arithmetic));
  if (axes.chunk)
    fmt::format_to(
        std::back_inserter(text),
        " decay={} inverse={} merge={} accumulator={} tail={} gates={} delta={} beta={} scale={} output={} "
        "readout={} update={} launch={}",
        numbered(decays, arithmetic.decay,
                 arithmetic.decay == DecayForm::clamp ? arithmetic.clamp : arithmetic.anchor_rows),
        numbered(inverses, arithmetic.inverse, arithmetic.inverse_rows),
        numbered(merges, arithmetic.merge, arithmetic.merge_rows),
        name_in(accumulators, arithmetic.accumulator), name_in(tails, arithmetic.tail),
        name_in(gate_bases, arithmetic.gates), name_in(deltas, arithmetic.delta),
        name_in(beta_parts, arithmetic.beta), name_in(scaled_parts, arithmetic.scale),
        name_in(outputs, arithmetic.output), name_in(readouts, arithmetic.readout),
        name_in(updates, arithmetic.update), words_of(arithmetic.launch));
  const auto add_if = [&](bool differs, std::string_view key, const auto& value) {
    if (!axes.chunk && differs) append(text, " {}={}", key, value);
  };
  add_if(arithmetic.delta == Delta::fused, "delta", name_in(deltas, arithmetic.delta));
  add_if(arithmetic.scale == ScaledPart::output || arithmetic.scale == ScaledPart::norm ||
             arithmetic.scale == ScaledPart::before,
         "scale", name_in(scaled_parts, arithmetic.scale));
  add_if(arithmetic.update == Update::decay_fused, "update", name_in(updates, arithmetic.update));
  add_if(arithmetic.launch != Launch{}, "launch", words_of(arithmetic.launch));
  if (!axes.chunk && arithmetic.stored != StoredState{}) text += " stored=" + words_of(arithmetic.stored);
  if (axes.chunk && arithmetic.segments.merge != SegmentMerge::none)
    text += " segments=" + numbered(segment_merges, arithmetic.segments.merge, arithmetic.segments.parts);
  if (arithmetic.heads != Heads::grouped) append(text, " heads={}", name_in(head_values, arithmetic.heads));
  return text;
}

void set_axis(Arithmetic& arithmetic, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    std::vector<std::string> names;
    for (const Preset& preset : presets()) {
      if (preset.name == assignment) return set_preset(arithmetic, preset);
      names.emplace_back(preset.name);
    }
    const std::string hint = suggest(assignment, names);
    throw Error(ErrorKind::usage, fmt::format("--arithmetic {}: wanted key=value or a preset", assignment),
                {}, hint.empty() ? "kda-check list arithmetic" : hint);
  }
  const std::string_view key = assignment.substr(0, equals);
  std::vector<std::string> names;
  for (const AxisKey& row : keys) {
    if (row.key == key) return row.set(arithmetic, assignment.substr(equals + 1));
    names.emplace_back(row.key);
  }
  throw Error(ErrorKind::usage, fmt::format("--arithmetic {}: no axis '{}'", assignment, key), {},
              suggest(key, names));
}

bool has_axis(ArithmeticAxes axes, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) return true;
  for (const AxisKey& row : keys)
    if (row.key == assignment.substr(0, equals)) return row.forms != (axes.chunk ? token : chunk);
  return false;
}

std::vector<AxisDescription> axis_descriptions() {
  return {
      {"contraction", names_in(contractions), "", "a*b + c with one rounding, or one after each operation"},
      {"exponential", names_in(exponentials), "",
       "how exp is evaluated; fp64 has exact and libm, which is the C library's"},
      {"special", names_in(specials), "",
       "how the norm and the gates divide, take roots and logarithms; fp64 has ieee"},
      {"subnormals", names_in(subnormal_values), "", "what becomes of subnormal numbers in fp32"},
      {"reduction", names_in(reductions), "",
       "the order of sums, and where they are rounded; mma:24 a tensor core of an Ampere or Ada, mma:25 of a "
       "Hopper or Blackwell"},
      {"storage", names_in(storages),
       "FORMAT@STAGE+... with bf16, fp16, tf32 and " + join(cast_point_names()),
       "what is rounded below the format of the computation"},
      {"decay", names_in(decays), "", "chunk: how exp(G_i - G_j) is formed; anchors stand every N rows"},
      {"inverse", names_in(inverses), "", "chunk: how (I + L)^-1 is formed"},
      {"merge", names_in(merges), "", "chunk: which blocks of the inverse are merged"},
      {"accumulator", names_in(accumulators), "",
       "chunk: what tensor cores add in where they form the inverse"},
      {"tail", names_in(tails), "", "chunk: how G_n - G_i, the decay to the chunk's end, is formed"},
      {"gates", names_in(gate_bases), "", "chunk: what sums of gates are logarithms to"},
      {"delta", names_in(deltas), "",
       "chunk: the prediction is subtracted behind the inverse, or before it; the token forms: fused with a "
       "write gate's product, or not"},
      {"beta", names_in(beta_parts), "",
       "chunk: beta multiplies the rows that the inverse multiplies, its columns, or the keys beside it"},
      {"scale", names_in(scaled_parts), "",
       "what scale multiplies: scores, q or q before it is rounded, or o behind its sum; the token forms: q, "
       "its reciprocal norm or "
       "o; before: q, rounded as it is stored before the call"},
      {"heads", names_in(head_values), "",
       "query heads that value heads share: as they are, or repeated before the call, their gradients "
       "rounded and added up behind it"},
      {"output", names_in(outputs), "", "chunk: how the two parts of o come together"},
      {"readout", names_in(readouts), "",
       "chunk: what the decays of q are counted from where it reads the state"},
      {"update", names_in(updates), "",
       "how writes join the decayed state; the token forms have chained and decay-fused"},
      {"segments", names_in(segment_merges), "",
       "chunk: the parts a sequence is computed in, and how their maps of the state are merged"},
      {"stored", stored_formats(), stored_grammar(),
       "the token forms: what a state is stored as between tokens"},
      {"launch",
       {"any"},
       "norm:SxLxW+pairs:SxLxW+substitution:SxLxW+scan:ROWS+block:COLUMNSxWARPS+wy:KxVxWARPS+intra:WARPS+"
       "reverse-scan:ROWS+norm-backward:SxLxW+gate-backward:WARPS",
       "with reduction=triton: the layouts that autotuning or a caller picked; with lanes, lanes-paired and "
       "split: that of the norm; with xla: the rows of a scan"}};
}

}  // namespace kda_check::kda
