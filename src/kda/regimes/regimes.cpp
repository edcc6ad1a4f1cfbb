#include "kda/regimes/regimes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.hpp"
#include "base/names.hpp"
#include "kda/regimes/draft.hpp"
#include "numeric/dtype_words.hpp"

namespace kda_check::kda {

namespace {

constexpr double most_tokens = 1 << 24, most_heads = 4096, most_width = 4096;

constexpr Parameter shared_rows[] = {
    {"B", "batch rows", 1, 1, most_heads, true},
    {"T", "tokens", 256, 1, most_tokens, true},
    {"H", "query and key heads", 2, 1, most_heads, true},
    {"HV", "value heads, a multiple of H; 0: as many", 0, 0, most_heads, true},
    {"K", "key width", 128, 1, most_width, true},
    {"V", "value width", 128, 1, most_width, true},
    {"C", "rows of a chunk", 64, 1, 1024, true},
    {"seed", "of the random numbers", 1, 0, 0x1p53, true},
    {"loss", "1: do and dht, normal; 2: do alone; 3: dht alone", 0, 0, 3, true},
    {"size", "of the values: v and the initial state times it", 1, 1e-300, 1e300, false},
};

std::vector<Recipe> all_recipes() {
  std::vector<Recipe> all;
  for (const auto& part :
       {regimes::decay_recipes(), regimes::gate_recipes(), regimes::solve_recipes(), regimes::carry_recipes(),
        regimes::structure_recipes(), regimes::exact_recipes(), regimes::backward_recipes(),
        regimes::family_recipes(), regimes::serving_recipes()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// The shared parameters, those the recipe overrides in their place, then its own.
Settings default_settings(const Recipe& recipe) {
  std::vector<Parameter> all(std::begin(shared_rows), std::end(shared_rows));
  for (const Parameter& parameter : recipe.parameters) {
    const auto same = std::find_if(all.begin(), all.end(),
                                   [&](const Parameter& other) { return other.name == parameter.name; });
    if (same != all.end()) {
      *same = parameter;
    } else {
      all.push_back(parameter);
    }
  }
  return Settings(std::move(all));
}

/// "3", "0.9997", "9.1e-05": the shortest text that reads back as the same number.
std::string number_text(double value) { return fmt::format("{}", value); }

std::string range_text(const Parameter& parameter) {
  const char* const kind = parameter.whole ? "whole number" : "number";
  if (parameter.least >= parameter.most)
    return fmt::format("this regime needs {}", number_text(parameter.least));
  return fmt::format("wanted a {} from {} to {}", kind, number_text(parameter.least),
                     number_text(parameter.most));
}

[[noreturn]] void refuse(std::string_view text, const std::string& what, std::string hint = {}) {
  throw Error(ErrorKind::usage, fmt::format("{}: {}", text, what), {}, std::move(hint));
}

void set(std::string_view text, const Recipe& recipe, Settings& settings, std::string_view assignment) {
  if (assignment.empty())
    refuse(text, "a parameter is missing", fmt::format("{0}, or {0}:T=128,seed=2", recipe.name));
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0)
    refuse(text, fmt::format("'{}' is not key=value", assignment));
  const std::string_view key = assignment.substr(0, equals), value = assignment.substr(equals + 1);
  if (key == "dtype") {
    const auto dtype = numeric::dtype_of_word(value);
    if (!dtype) refuse(text, fmt::format("no dtype '{}'", value), "fp64, fp32, bf16, fp16");
    settings.dtype = *dtype;
    return;
  }
  Parameter* const parameter = settings.find(key);
  if (parameter == nullptr) {
    std::vector<std::string> names{"dtype"};
    for (const Parameter& candidate : settings.all()) names.emplace_back(candidate.name);
    refuse(text, fmt::format("{} has no parameter '{}'", recipe.name, key), suggest(key, names));
  }
  double number = 0;
  const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool is_number = failure == std::errc{} && end == value.data() + value.size();
  const bool inside = number >= parameter->least && number <= parameter->most;
  if (!is_number || !inside || (parameter->whole && number != std::floor(number)))
    refuse(text, fmt::format("{}={}: {}", key, value, range_text(*parameter)));
  parameter->value = number;
}

/// At most, of a call on a pool: its tokens and states are drawn, stored, and stored once more in its
/// ordinary form, in which a token of a draft is as often as states behind it.
double bytes_of_call(const Settings& settings, double per_token, double per_state) {
  const double rows = settings["sequences"], columns = settings["drafts"];
  const double tokens = rows * (columns > 0 ? columns : settings["T"]),
               states = rows * std::max(1.0, columns);
  const double apart = settings["apart"],
               slots = std::max(settings["slots"], (apart > 0 ? 2 : 1) * states + 1);
  const double rings = slots * settings["ring"];
  const double in_all = (columns > 0 ? tokens * (columns + 1) / 2 : tokens) + 2 * rows * settings["ring"];
  return 16 * ((tokens + rings) * per_token + (apart > 1 ? 2 : 1) * slots * per_state) +
         8 * (in_all * per_token + states * per_state);
}

}  // namespace

double Settings::operator[](std::string_view name) const {
  for (const Parameter& parameter : parameters_)
    if (parameter.name == name) return parameter.value;
  throw Error(ErrorKind::internal, fmt::format("a regime reads the parameter '{}' it does not have", name));
}

Parameter* Settings::find(std::string_view name) {
  for (Parameter& parameter : parameters_)
    if (parameter.name == name) return &parameter;
  return nullptr;
}

std::string Settings::text() const {
  std::string text;
  for (const Parameter& parameter : parameters_)
    text += fmt::format("{}={},", parameter.name, number_text(parameter.value));
  return text + fmt::format("dtype={}", numeric::name_of(dtype));
}

std::span<const Parameter> shared_parameters() { return shared_rows; }

std::span<const Recipe> recipes() {
  static const std::vector<Recipe> list = all_recipes();
  return list;
}

const Recipe* find_recipe(std::string_view name) {
  for (const Recipe& recipe : recipes())
    if (recipe.name == name) return &recipe;
  return nullptr;
}

bool names_recipe(std::string_view text) { return find_recipe(text.substr(0, text.find(':'))) != nullptr; }

RegimeRequest parse_regime(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const Recipe* const recipe = find_recipe(name);
  if (recipe == nullptr) {
    std::vector<std::string> names;
    for (const Recipe& candidate : recipes()) names.emplace_back(candidate.name);
    throw Error(ErrorKind::usage, fmt::format("no regime '{}'", name), {}, suggest(name, names));
  }
  RegimeRequest request{std::string(text), recipe, default_settings(*recipe)};
  std::vector<std::string_view> given;
  for (std::size_t end = colon; end != std::string_view::npos;) {
    const std::size_t begin = end + 1;
    end = text.find(',', begin);
    const std::string_view assignment = text.substr(begin, end - begin);
    const std::string_view key = assignment.substr(0, assignment.find('='));
    const bool is_of_output = key == "fault" || key == "by" || key == "compute";
    if (is_of_output && assignment.size() > key.size() + 1)
      request.output[std::string(key)] = assignment.substr(key.size() + 1);
    else
      set(text, *recipe, request.settings, assignment);
    if (std::find(given.begin(), given.end(), key) != given.end())
      refuse(text, fmt::format("{} is given twice", key));
    given.push_back(key);
  }
  const std::size_t H = request.settings.count("H"), HV = request.settings.count("HV");
  if (HV % H != 0) refuse(text, fmt::format("HV={} is no multiple of H={}", HV, H));
  return request;
}

Problem RegimeRequest::build() const { return recipe->build(settings); }

Outline RegimeRequest::outline() const {
  // Options and inputs do not depend on the number of tokens; lengths of packed sequences do.
  constexpr double few = 192;
  const double tokens = settings["T"];
  if (tokens <= 2 * few) return build();
  try {
    Settings shorter = settings;
    shorter.find("T")->value = few;
    Outline outline = recipe->build(shorter);
    if (!outline.packed()) {
      Dimensions& d = outline.dimensions;
      d.T += static_cast<std::size_t>(tokens - few);
      d.NT = (d.T + d.C - 1) / d.C;
      return outline;
    }
  } catch (const Error&) {
    // Settings that want more tokens than these.
  }
  return build();
}

std::size_t RegimeRequest::bytes() const {
  const double H = settings["H"], HV = std::max(settings["HV"], H), K = settings["K"], V = settings["V"];
  const double loss = settings["loss"] > 0 ? 1 : 0;
  const double per_token = 2 * H * K + HV * (K + V + loss * V + 1);
  const double elements = settings["B"] * (settings["T"] * per_token + (1 + loss) * HV * K * V);
  // In fp64 while they are drawn, and once more as they are stored.
  const bool has_pool = std::ranges::find(settings.all(), "slots", &Parameter::name) != settings.all().end();
  const double bytes = has_pool ? bytes_of_call(settings, per_token, HV * K * V) : 16 * elements;
  return bytes < 0x1p62 ? static_cast<std::size_t>(bytes) : std::size_t{1} << 62;
}

}  // namespace kda_check::kda
