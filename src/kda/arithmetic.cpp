#include "kda/arithmetic.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <iterator>

#include "base/error.hpp"
#include "base/names.hpp"

namespace kda_check::kda {

namespace {

// One row for each value of an axis. `rows` is appended as ":16" for the forms that have it.
template <class Value>
struct ValueName {
  Value value;
  std::string_view name;
  bool has_rows = false;
};

constexpr ValueName<Contraction> contractions[] = {{Contraction::fused, "fused"},
                                                   {Contraction::separate, "separate"}};
constexpr ValueName<Storage> storages[] = {{Storage::none, "none"}, {Storage::upstream, "upstream"}};
constexpr ValueName<DecayForm> decays[] = {{DecayForm::pair, "pair"},
                                           {DecayForm::anchor_pair, "anchor-pair", true},
                                           {DecayForm::anchor_first, "anchor-first", true},
                                           {DecayForm::anchor_mid, "anchor-mid", true}};
constexpr ValueName<InverseForm> inverses[] = {{InverseForm::substitution, "substitution"},
                                               {InverseForm::blocks, "blocks:16"}};
constexpr std::array anchor_heights{16, 32, 64};

struct AxisKey {
  std::string_view key;
  bool chunk_only;
};
constexpr AxisKey keys[] = {{"contraction", false}, {"storage", true}, {"decay", true}, {"inverse", true}};

template <class Value, std::size_t count>
std::string_view name_in(const ValueName<Value> (&list)[count], Value value) {
  for (const auto& row : list)
    if (row.value == value) return row.name;
  return "?";
}

template <class Value, std::size_t count>
std::vector<std::string> names_in(const ValueName<Value> (&list)[count]) {
  std::vector<std::string> names;
  for (const auto& row : list) {
    if (!row.has_rows) names.emplace_back(row.name);
    if (row.has_rows)
      for (const int height : anchor_heights) names.push_back(fmt::format("{}:{}", row.name, height));
  }
  return names;
}

template <class Value, std::size_t count>
const ValueName<Value>& find_in(const ValueName<Value> (&list)[count], std::string_view key,
                                std::string_view value, std::string_view whole) {
  for (const auto& row : list)
    if (row.name == value) return row;
  throw Error(ErrorKind::usage, fmt::format("--arithmetic {}={}: no such {}", key, whole, key), {},
              suggest(whole, names_in(list)));
}

int anchor_rows_of(std::string_view text, std::string_view whole) {
  int rows = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), rows);
  for (const int height : anchor_heights)
    if (failure == std::errc{} && end == text.data() + text.size() && rows == height) return rows;
  throw Error(ErrorKind::usage,
              fmt::format("--arithmetic decay={}: anchors stand every 16, 32 or 64 rows", whole));
}

void set_decay(Arithmetic& arithmetic, std::string_view whole) {
  const std::size_t colon = whole.find(':');
  const auto& row = find_in(decays, "decay", whole.substr(0, colon), whole);
  if (!row.has_rows && colon != std::string_view::npos)
    throw Error(ErrorKind::usage, fmt::format("--arithmetic decay={}: {} has no anchor", whole, row.name));
  arithmetic.decay = row.value;
  if (row.has_rows)
    arithmetic.anchor_rows =
        colon == std::string_view::npos ? 16 : anchor_rows_of(whole.substr(colon + 1), whole);
}

std::string decay_name(const Arithmetic& arithmetic) {
  for (const auto& row : decays)
    if (row.value == arithmetic.decay)
      return row.has_rows ? fmt::format("{}:{}", row.name, arithmetic.anchor_rows) : std::string(row.name);
  return "?";
}

}  // namespace

CastPoints upstream_cast_points(numeric::DType dtype, bool beta_is_16_bit) {
  CastPoints casts;
  if (dtype != numeric::DType::bf16 && dtype != numeric::DType::fp16) return casts;
  const Rounding narrow = dtype == numeric::DType::bf16 ? Rounding::bf16 : Rounding::fp16;
  casts.normalised = narrow;
  casts.score_operands = Rounding::tf32;
  casts.Aqk = narrow;
  casts.inverse_operands = Rounding::tf32;
  casts.Akk_inv = narrow;
  casts.beta_key = beta_is_16_bit ? narrow : Rounding::none;
  casts.operands = narrow;
  casts.stored = narrow;
  casts.state = narrow;
  return casts;
}

std::string describe(const Arithmetic& arithmetic, ArithmeticAxes axes) {
  std::string text = fmt::format("contraction={} exponential=exact reduction=sequential",
                                 name_in(contractions, arithmetic.contraction));
  if (axes.chunk)
    fmt::format_to(std::back_inserter(text), " storage={} decay={} inverse={}",
                   name_in(storages, arithmetic.storage), decay_name(arithmetic),
                   name_in(inverses, arithmetic.inverse));
  return text;
}

void set_axis(Arithmetic& arithmetic, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  const std::string_view key = assignment.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : assignment.substr(equals + 1);
  if (equals == std::string_view::npos)
    throw Error(ErrorKind::usage, fmt::format("--arithmetic {}: wanted key=value", assignment), {},
                "kda-check list arithmetic");
  if (key == "contraction") {
    arithmetic.contraction = find_in(contractions, key, value, value).value;
  } else if (key == "storage") {
    arithmetic.storage = find_in(storages, key, value, value).value;
  } else if (key == "decay") {
    set_decay(arithmetic, value);
  } else if (key == "inverse") {
    arithmetic.inverse = find_in(inverses, key, value, value).value;
  } else {
    std::vector<std::string> names;
    for (const AxisKey& row : keys) names.emplace_back(row.key);
    throw Error(ErrorKind::usage, fmt::format("--arithmetic {}: no axis '{}'", assignment, key), {},
                suggest(key, names));
  }
}

bool has_axis(ArithmeticAxes axes, std::string_view assignment) {
  const std::string_view key = assignment.substr(0, assignment.find('='));
  for (const AxisKey& row : keys)
    if (row.key == key) return axes.chunk || !row.chunk_only;
  return false;
}

std::vector<AxisDescription> axis_descriptions() {
  return {
      {"contraction", join(names_in(contractions)), "a*b + c with one rounding, or one after each operation"},
      {"storage", join(names_in(storages)), "chunk in bf16, fp16: round the stages where FLA's kernels do"},
      {"decay", join(names_in(decays)), "chunk: how exp(G_i - G_j) is formed; anchors stand every N rows"},
      {"inverse", join(names_in(inverses)), "chunk: how (I + L)^-1 is formed"}};
}

}  // namespace kda_check::kda
