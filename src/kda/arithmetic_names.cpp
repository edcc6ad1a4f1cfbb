// The words of --arithmetic: one list for each axis, read both ways.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <iterator>

#include "base/error.hpp"
#include "base/names.hpp"
#include "kda/arithmetic.hpp"
#include "kda/launch_words.hpp"

namespace kda_check::kda {

namespace {

/// What follows the colon of a name.
enum class Number : std::uint8_t { none, rows, width, bits, exponent };

template <class Value>
struct ValueName {
  Value value;
  std::string_view name;
  Number number = Number::none;
};

constexpr ValueName<Contraction> contractions[] = {{Contraction::fused, "fused"},
                                                   {Contraction::separate, "separate"}};
constexpr ValueName<Exponential> exponentials[] = {{Exponential::exact, "exact"},
                                                   {Exponential::libm, "libm"},
                                                   {Exponential::cuda, "cuda"},
                                                   {Exponential::cuda_fast, "cuda-fast"},
                                                   {Exponential::exp2_scaled, "exp2-scaled"},
                                                   {Exponential::flush, "flush"},
                                                   {Exponential::poly, "poly"}};
constexpr ValueName<Special> specials[] = {{Special::ieee, "ieee"}, {Special::triton, "triton"}};
constexpr ValueName<ReductionKind> reductions[] = {{ReductionKind::sequential, "sequential"},
                                                   {ReductionKind::pairwise, "pairwise"},
                                                   {ReductionKind::tree, "tree", Number::width},
                                                   {ReductionKind::blocks, "blocks", Number::width},
                                                   {ReductionKind::mma, "mma", Number::bits},
                                                   {ReductionKind::triton, "triton", Number::bits},
                                                   {ReductionKind::simt, "simt"},
                                                   {ReductionKind::exact, "exact"}};
constexpr ValueName<Storage> storages[] = {{Storage::none, "none"},
                                           {Storage::upstream, "upstream"},
                                           {Storage::fla, "fla"},
                                           {Storage::triton, "triton"},
                                           {Storage::flash_kda, "flash-kda"}};
constexpr ValueName<DecayForm> decays[] = {{DecayForm::pair, "pair"},
                                           {DecayForm::pair_late, "pair-late"},
                                           {DecayForm::anchor_pair, "anchor-pair", Number::rows},
                                           {DecayForm::anchor_first, "anchor-first", Number::rows},
                                           {DecayForm::anchor_mid, "anchor-mid", Number::rows},
                                           {DecayForm::factored, "factored", Number::rows},
                                           {DecayForm::clamp, "clamp", Number::exponent}};
constexpr ValueName<InverseForm> inverses[] = {{InverseForm::substitution, "substitution"},
                                               {InverseForm::blocks, "blocks", Number::rows},
                                               {InverseForm::doubling, "doubling", Number::rows},
                                               {InverseForm::horner, "horner", Number::rows}};
constexpr ValueName<TailForm> tails[] = {{TailForm::difference, "difference"}, {TailForm::suffix, "suffix"}};
constexpr ValueName<Gates> gate_bases[] = {{Gates::natural, "natural"}, {Gates::log2, "log2"}};
constexpr ValueName<Update> updates[] = {{Update::chained, "chained"}, {Update::transposed, "transposed"}};
constexpr ValueName<Rounding> roundings[] = {
    {Rounding::bf16, "bf16"}, {Rounding::fp16, "fp16"}, {Rounding::tf32, "tf32"}};

struct Preset {
  std::string_view name, summary;
  void (*apply)(Arithmetic&);
};
constexpr Preset presets[] = {
    {"ideal", "every operation within half a unit in the last place",
     [](Arithmetic& a) { a = ideal_arithmetic(); }},
    {"ieee", "a CPU without contraction: separate, libm, sequential, nothing rounded, pair, substitution",
     [](Arithmetic& a) {
       a = ideal_arithmetic();
       a.contraction = Contraction::separate;
       a.exponential = Exponential::libm;
       a.reduction = {};
     }},
    {"h100", "kda-check's own GPU kernels on an H100, bit for bit: fused, cuda, simt, blocks:16, tail=suffix",
     [](Arithmetic& a) {
       a.contraction = Contraction::fused;
       a.exponential = Exponential::cuda;
       a.reduction = {ReductionKind::simt, 0};
       a.inverse = InverseForm::blocks;
       a.inverse_rows = 16;
       a.tail = TailForm::suffix;
     }},
    {"fla",
     "FLA's chunk_kda on an H100, forwards bit for bit: fused, cuda-fast, special=triton, triton:25, "
     "upstream, "
     "blocks:16, log2, transposed",
     [](Arithmetic& a) {
       a.contraction = Contraction::fused;
       a.exponential = Exponential::cuda_fast;
       a.special = Special::triton;
       a.reduction = {ReductionKind::triton, 25};
       a.storage = Storage::triton;
       a.inverse = InverseForm::blocks;
       a.inverse_rows = 16;
       a.tail = TailForm::difference;
       a.gates = Gates::log2;
       a.update = Update::transposed;
     }},
    {"fla-recurrent",
     "FLA's fused_recurrent_kda on an H100, bit for bit: fused, cuda-fast, special=triton, triton:25",
     [](Arithmetic& a) {
       a.contraction = Contraction::fused;
       a.exponential = Exponential::cuda_fast;
       a.special = Special::triton;
       a.reduction = {ReductionKind::triton, 25};
       a.storage = Storage::none;
     }},
    {"flash-kda",
     "FlashKDA's kernels; meant for --chunk-size 16: factored:16, doubling:16, storage=flash-kda",
     [](Arithmetic& a) {
       a.contraction = Contraction::fused;
       a.exponential = Exponential::cuda_fast;
       a.reduction = {ReductionKind::mma, 25};
       a.storage = Storage::flash_kda;
       a.decay = DecayForm::factored;
       a.inverse = InverseForm::doubling;
       a.anchor_rows = a.inverse_rows = 16;
     }},
};

constexpr std::string_view block_heights = "16, 32 or 64";

template <class Value, std::size_t count>
std::string_view name_in(const ValueName<Value> (&list)[count], Value value) {
  for (const auto& row : list)
    if (row.value == value) return row.name;
  return "?";
}

std::vector<std::string> examples_of(std::string_view name, Number number) {
  const auto with = [&](auto... values) { return std::vector{fmt::format("{}:{}", name, values)...}; };
  switch (number) {
    case Number::none:
      return {std::string(name)};
    case Number::rows:
      return with(16, 32, 64);
    case Number::width:
      return with("N");
    case Number::bits:
      return with(24, 25);
    case Number::exponent:
      break;
  }
  return with("X");
}

template <class Value, std::size_t count>
std::vector<std::string> names_in(const ValueName<Value> (&list)[count]) {
  std::vector<std::string> names;
  for (const auto& row : list)
    for (std::string& name : examples_of(row.name, row.number)) names.push_back(std::move(name));
  return names;
}

[[noreturn]] void refuse(std::string_view key, std::string_view value, const std::string& why,
                         const std::string& hint = {}) {
  throw Error(ErrorKind::usage, fmt::format("--arithmetic {}={}: {}", key, value, why), {}, hint);
}

/// The number behind the colon, checked; `fallback` without one.
double number_of(Number kind, std::string_view key, std::string_view value, std::size_t colon,
                 double fallback) {
  if (colon == std::string_view::npos) return fallback;
  const std::string_view text = value.substr(colon + 1);
  double number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool read = failure == std::errc{} && end == text.data() + text.size();
  const bool whole = read && number == std::floor(number);
  switch (kind) {
    case Number::none:
      refuse(key, value, fmt::format("{} takes no number", value.substr(0, colon)));
    case Number::rows:
      if (!whole || (number != 16 && number != 32 && number != 64))
        refuse(key, value, fmt::format("blocks have {} rows", block_heights));
      break;
    case Number::width:
      if (!whole || number < 2 || number > 1024) refuse(key, value, "wanted 2 to 1024 terms");
      break;
    case Number::bits:
      if (!whole || number < 20 || number > 30) refuse(key, value, "wanted 20 to 30 bits");
      break;
    case Number::exponent:
      if (!read || !(number >= 1 && number <= 1000)) refuse(key, value, "wanted an exponent of 2, 1 to 1000");
      break;
  }
  return number;
}

struct Read {
  std::string_view name;
  std::size_t colon;
};
Read split(std::string_view value) { return {value.substr(0, value.find(':')), value.find(':')}; }

template <class Value, std::size_t count>
const ValueName<Value>& find_in(const ValueName<Value> (&list)[count], std::string_view key,
                                std::string_view value) {
  for (const auto& row : list)
    if (row.name == split(value).name) return row;
  refuse(key, value, fmt::format("no such {}", key), suggest(value, names_in(list)));
}

/// The value of an axis without numbers.
template <class Value, std::size_t count>
Value plain(const ValueName<Value> (&list)[count], std::string_view key, std::string_view value) {
  const auto& row = find_in(list, key, value);
  number_of(row.number, key, value, split(value).colon, 0);
  return row.value;
}

void set_reduction(Arithmetic& arithmetic, std::string_view value) {
  const auto& row = find_in(reductions, "reduction", value);
  const double fallback = row.number == Number::bits ? 25 : row.number == Number::none ? 0 : 32;
  arithmetic.reduction = {
      row.value, static_cast<int>(number_of(row.number, "reduction", value, split(value).colon, fallback))};
}

void set_decay(Arithmetic& arithmetic, std::string_view value) {
  const auto& row = find_in(decays, "decay", value);
  const double number =
      number_of(row.number, "decay", value, split(value).colon, row.number == Number::exponent ? 126 : 16);
  arithmetic.decay = row.value;
  arithmetic.anchor_rows = row.number == Number::rows ? static_cast<int>(number) : 16;
  if (row.number == Number::exponent) arithmetic.clamp = number;
}

void set_inverse(Arithmetic& arithmetic, std::string_view value) {
  const auto& row = find_in(inverses, "inverse", value);
  arithmetic.inverse_rows = static_cast<int>(number_of(row.number, "inverse", value, split(value).colon, 16));
  arithmetic.inverse = row.value;
}

std::vector<std::string> cast_point_names() {
  std::vector<std::string> names{"products"};
  for (const CastPointRow& row : cast_point_rows()) names.emplace_back(row.name);
  return names;
}

/// One "bf16@state" of `value`.
void set_cast(CastPoints& casts, std::string_view value, std::string_view part) {
  const std::size_t at = part.find('@');
  if (at == std::string_view::npos) refuse("storage", value, "wanted FORMAT@STAGE+FORMAT@STAGE");
  const Rounding rounding = plain(roundings, "storage", part.substr(0, at));
  const std::string_view name = part.substr(at + 1);
  if (name.empty()) refuse("storage", value, "no stage named", "one of: " + join(cast_point_names()));
  bool known = false;
  for (const CastPointRow& row : cast_point_rows())
    if (row.name == name || (name == "products" && row.is_operand)) casts.*row.point = rounding, known = true;
  if (!known) refuse("storage", value, fmt::format("no stage '{}'", name), suggest(name, cast_point_names()));
}

/// "bf16@state+tf32@products"
void set_storage(Arithmetic& arithmetic, std::string_view value) {
  if (value.find('@') == std::string_view::npos) {
    for (const auto& row : roundings)
      if (row.name == value)
        refuse("storage", value, "a format wants a stage",
               fmt::format("FORMAT@STAGE, as storage={}@state; kda-check list arithmetic", value));
    arithmetic.storage = plain(storages, "storage", value);
    return;
  }
  arithmetic.casts = {};
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
      fmt::format_to(std::back_inserter(text), "{}{}@{}", text.empty() ? "" : "+",
                     name_in(roundings, arithmetic.casts.*row.point), row.name);
  return text.empty() ? "none" : text;
}

template <class Value, std::size_t count>
std::string numbered(const ValueName<Value> (&list)[count], Value value, double number) {
  for (const auto& row : list)
    if (row.value == value)
      return row.number == Number::none ? std::string(row.name) : fmt::format("{}:{}", row.name, number);
  return "?";
}

struct AxisKey {
  std::string_view key;
  bool chunk_only;
  void (*set)(Arithmetic&, std::string_view);
};
constexpr AxisKey keys[] = {
    {"contraction", false,
     [](Arithmetic& a, std::string_view v) { a.contraction = plain(contractions, "contraction", v); }},
    {"exponential", false,
     [](Arithmetic& a, std::string_view v) { a.exponential = plain(exponentials, "exponential", v); }},
    {"special", false, [](Arithmetic& a, std::string_view v) { a.special = plain(specials, "special", v); }},
    {"reduction", false, set_reduction},
    {"storage", false, set_storage},
    {"decay", true, set_decay},
    {"inverse", true, set_inverse},
    {"tail", true, [](Arithmetic& a, std::string_view v) { a.tail = plain(tails, "tail", v); }},
    {"gates", true, [](Arithmetic& a, std::string_view v) { a.gates = plain(gate_bases, "gates", v); }},
    {"update", true, [](Arithmetic& a, std::string_view v) { a.update = plain(updates, "update", v); }},
    {"launch", true, [](Arithmetic& a, std::string_view v) { a.launch = launch_from(v); }}};

}  // namespace

std::string axis_value(const Arithmetic& arithmetic, std::string_view axis) {
  if (axis == "contraction") return std::string(name_in(contractions, arithmetic.contraction));
  if (axis == "exponential") return std::string(name_in(exponentials, arithmetic.exponential));
  if (axis == "special") return std::string(name_in(specials, arithmetic.special));
  if (axis == "reduction")
    return numbered(reductions, arithmetic.reduction.kind, arithmetic.reduction.width) +
           (arithmetic.launch == Launch{} ? "" : ", " + words_of(arithmetic.launch));
  if (axis == "storage") return storage_name(arithmetic);
  const double number = arithmetic.decay == DecayForm::clamp ? arithmetic.clamp : arithmetic.anchor_rows;
  return fmt::format("{}, {}{}{}{}", numbered(decays, arithmetic.decay, number),
                     numbered(inverses, arithmetic.inverse, arithmetic.inverse_rows),
                     arithmetic.tail == TailForm::suffix ? ", suffix tail" : "",
                     arithmetic.gates == Gates::log2 ? ", log2 gates" : "",
                     arithmetic.update == Update::transposed ? ", transposed update" : "");
}

std::string describe(const Arithmetic& arithmetic, ArithmeticAxes axes) {
  std::string text = fmt::format(
      "contraction={} exponential={} special={} reduction={} storage={}",
      name_in(contractions, arithmetic.contraction), name_in(exponentials, arithmetic.exponential),
      name_in(specials, arithmetic.special),
      numbered(reductions, arithmetic.reduction.kind, arithmetic.reduction.width), storage_name(arithmetic));
  if (axes.chunk)
    fmt::format_to(std::back_inserter(text), " decay={} inverse={} tail={} gates={} update={} launch={}",
                   numbered(decays, arithmetic.decay,
                            arithmetic.decay == DecayForm::clamp ? arithmetic.clamp : arithmetic.anchor_rows),
                   numbered(inverses, arithmetic.inverse, arithmetic.inverse_rows),
                   name_in(tails, arithmetic.tail), name_in(gate_bases, arithmetic.gates),
                   name_in(updates, arithmetic.update), words_of(arithmetic.launch));
  return text;
}

void set_axis(Arithmetic& arithmetic, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    std::vector<std::string> names;
    for (const Preset& preset : presets) {
      if (preset.name == assignment) return preset.apply(arithmetic);
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
    if (row.key == assignment.substr(0, equals)) return axes.chunk || !row.chunk_only;
  return false;
}

std::vector<AxisDescription> axis_descriptions() {
  std::vector<AxisDescription> rows = {
      {"contraction", join(names_in(contractions)), "a*b + c with one rounding, or one after each operation"},
      {"exponential", join(names_in(exponentials)),
       "how exp is evaluated; fp64 has exact and libm, which is the C library's"},
      {"special", join(names_in(specials)),
       "how the norm and the gates divide, take roots and logarithms; fp64 has ieee"},
      {"reduction", join(names_in(reductions)),
       "the order of sums, and where they are rounded; mma:24 a tensor core of an Ampere or Ada, mma:25 of a "
       "Hopper or Blackwell"},
      {"storage",
       join(names_in(storages)) + ", or FORMAT@STAGE+... with bf16, fp16, tf32 and " +
           join(cast_point_names()),
       "what is rounded below the format of the computation"},
      {"decay", join(names_in(decays)), "chunk: how exp(G_i - G_j) is formed; anchors stand every N rows"},
      {"inverse", join(names_in(inverses)), "chunk: how (I + L)^-1 is formed"},
      {"tail", join(names_in(tails)), "chunk: how G_n - G_i, the decay to the chunk's end, is formed"},
      {"gates", join(names_in(gate_bases)), "chunk: what sums of gates are logarithms to"},
      {"update", join(names_in(updates)), "chunk: how writes join the decayed state"},
      {"launch", "any, or norm:SxLxW+pairs:SxLxW+substitution:SxLxW+scan:ROWS",
       "chunk, with reduction=triton: the layouts that autotuning picked"}};
  for (const Preset& preset : presets)
    rows.push_back({std::string(preset.name), std::string(preset.summary), "preset"});
  return rows;
}

}  // namespace kda_check::kda
