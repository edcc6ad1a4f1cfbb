#include "judge/tolerances.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/file_text.hpp"
#include "base/names.hpp"
#include "judge/measures/metrics.hpp"
#include "kda/problem/gradients.hpp"
#include "kda/regimes/regimes.hpp"
#include "kda/variants/variants.hpp"
#include "numeric/dtype_words.hpp"

// What toml++ asserts a file can break ("[[["); with NDEBUG it lets clang assume that nothing does.
namespace {
struct TomlBroken {};
[[noreturn]] void toml_broken() { throw TomlBroken(); }
}  // namespace
#undef NDEBUG
#define TOML_ASSERT(condition) ((condition) ? static_cast<void>(0) : toml_broken())
#include <toml++/toml.h>

namespace kda_check::judge {

namespace {

struct Condition {
  std::string_view key;
  std::string ToleranceRule::*text;
};
constexpr Condition conditions[] = {
    {"tensor", &ToleranceRule::tensor},   {"dtype", &ToleranceRule::dtype},
    {"variant", &ToleranceRule::variant}, {"fixture", &ToleranceRule::fixture},
    {"regime", &ToleranceRule::regime},   {"against", &ToleranceRule::against},
    {"reason", &ToleranceRule::reason},
};

/// A trailing * stands for any rest; no pattern holds for everything.
bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return true;
  if (pattern.back() == '*') return text.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern == text;
}

/// Without parameters a regime stands for all of its parameters.
bool matches_regime(std::string_view pattern, std::string_view text) {
  return matches(pattern,
                 pattern.find(':') == std::string_view::npos ? text.substr(0, text.find(':')) : text);
}

std::string place_of(const std::string& path, const toml::source_region& source) {
  return fmt::format("{}:{}", path, source.begin.line);
}

std::string text_of(const toml::node& node, std::string_view key, const std::string& place) {
  const std::optional<std::string> text = node.value_exact<std::string>();
  if (!text) throw Error(ErrorKind::input, fmt::format("{} must be a string", key), place);
  if (text->empty())
    throw Error(ErrorKind::input, fmt::format("{} is empty", key), place,
                key == "reason" ? "say why the derived limits do not do" : "leave it out to mean all");
  return *text;
}

LimitRequest limit_of(const toml::node& node, std::string_view metric, const std::string& place) {
  const std::optional<double> number = node.is_number() ? node.value<double>() : std::nullopt;
  const std::string text = node.is_string() ? text_of(node, metric, place) : "";
  const std::optional<LimitRequest> request =
      limit_request(metric, number ? fmt::format("{}", *number) : text);
  if (!request || (!number && !request->none && !request->exact))
    throw Error(ErrorKind::input, fmt::format("the limit on {} must be a number >= 0", metric), place,
                R"(a number, "exact" or "none")");
  return *request;
}

[[noreturn]] void refuse_key(const std::string& key, const std::string& place) {
  std::vector<std::string> known;
  for (const Condition& condition : conditions) known.emplace_back(condition.key);
  for (std::string& name : metric_names()) known.push_back(std::move(name));
  throw Error(ErrorKind::input, fmt::format("no key or metric '{}' in a rule", key), place,
              suggest(key, known));
}

/// Names that must exist; those of fixtures, recorded answers and variants are known to their files alone.
void check_names(ToleranceRule& rule) {
  if (!rule.dtype.empty()) {
    const auto dtype = numeric::dtype_of_word(rule.dtype);
    if (!dtype)
      throw Error(ErrorKind::input, fmt::format("no dtype '{}'", rule.dtype), rule.place,
                  suggest(rule.dtype, {"fp64", "fp32", "bf16", "fp16"}));
    rule.dtype = numeric::name_of(*dtype);
  }
  std::vector<std::string> tensors = kda::tensors_of(kda::Pass::forward);
  for (const kda::GradientRow& row : kda::gradients()) tensors.emplace_back(row.name);
  for (const kda::StageRow& row : kda::stages(kda::Passes::both))
    if (!std::ranges::count(tensors, row.name)) tensors.emplace_back(row.name);  // dv is both
  if (!rule.tensor.empty() && std::find(tensors.begin(), tensors.end(), rule.tensor) == tensors.end())
    throw Error(ErrorKind::input, fmt::format("run compares no tensor '{}'", rule.tensor), rule.place,
                suggest(rule.tensor, tensors));
  if (rule.regime.empty()) return;
  const std::string_view name = std::string_view(rule.regime).substr(0, rule.regime.find(':'));
  std::vector<std::string> names;
  for (const kda::Recipe& recipe : kda::recipes()) names.emplace_back(recipe.name);
  if (std::none_of(names.begin(), names.end(),
                   [&](const std::string& recipe) { return matches(name, recipe); }))
    throw Error(ErrorKind::input, fmt::format("no regime '{}'", rule.regime), rule.place,
                suggest(std::string(name), names));
}

ToleranceRule rule_of(const toml::table& table, const std::string& path) {
  ToleranceRule rule;
  rule.place = place_of(path, table.source());
  for (const auto& [name, node] : table) {
    const std::string key(name.str());
    const std::string place = place_of(path, name.source());
    const auto* const condition = std::find_if(std::begin(conditions), std::end(conditions),
                                               [&](const Condition& item) { return item.key == key; });
    if (condition != std::end(conditions)) {
      rule.*condition->text = text_of(node, key, place);
    } else if (find_metric(key) != nullptr) {
      rule.limits.push_back(limit_of(node, key, place));
    } else {
      refuse_key(key, place);
    }
  }
  if (rule.reason.empty())
    throw Error(ErrorKind::input, "a rule without a reason", rule.place,
                R"(reason = "why the derived limits do not do")");
  if (rule.limits.empty())
    throw Error(ErrorKind::input, "a rule without a limit", rule.place, "e.g. scaled_ulp = 16");
  check_names(rule);
  return rule;
}

toml::table parsed(const std::string& path) {
  const std::string text = read_text(path, {"the tolerances"}).text;
  try {
    return toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorKind::input, "not TOML: " + printable(error.description()),
                place_of(path, error.source()));
  } catch (const TomlBroken&) {
    throw Error(ErrorKind::input, "not TOML", path);
  }
}

bool lacks_its_variant(const ToleranceRule& rule) {
  return !rule.variant.empty() &&
         std::any_of(kda::variants().begin(), kda::variants().end(), [&](const kda::Variant& variant) {
           return matches(rule.variant, variant.name) && !variant.unavailable().empty();
         });
}

}  // namespace

Tolerances Tolerances::read(const std::string& path) {
  const toml::table document = parsed(path);
  Tolerances tolerances;
  for (const auto& [name, node] : document) {
    const std::string place = place_of(path, name.source());
    if (name.str() != "rule")
      throw Error(ErrorKind::input, fmt::format("no key '{}' outside a rule", name.str()), place,
                  "rules begin with [[rule]]");
    const toml::array* const rules = node.as_array();
    if (rules == nullptr || !rules->is_homogeneous(toml::node_type::table))
      throw Error(ErrorKind::input, "rule must be a list of tables", place, "rules begin with [[rule]]");
    for (const toml::node& rule : *rules) tolerances.rules_.push_back(rule_of(*rule.as_table(), path));
  }
  if (tolerances.rules_.empty()) throw Error(ErrorKind::input, "no rules", path, "rules begin with [[rule]]");
  tolerances.uses_.resize(tolerances.rules_.size());
  return tolerances;
}

std::vector<const ToleranceRule*> Tolerances::rules_for(const Compared& compared) {
  std::vector<const ToleranceRule*> list;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const ToleranceRule& rule = rules_[i];
    if (!matches(rule.fixture, compared.fixture) || !matches_regime(rule.regime, compared.fixture)) continue;
    uses_[i].seen_fixture = true;
    if (!matches(rule.variant, compared.variant) || !matches(rule.dtype, compared.dtype) ||
        !matches(rule.tensor, compared.tensor) || !matches(rule.against, compared.against) ||
        (compared.against == "replay" && rule.against != "replay"))
      continue;
    uses_[i].matched = true;
    try {
      refuse_limits_finer_than_storage(rule.limits, 0, 0, compared.storage);
    } catch (const Error& error) {
      throw Error(ErrorKind::input, error.found(), rule.place, error.hint());
    }
    list.push_back(&rule);
  }
  return list;
}

std::vector<const ToleranceRule*> Tolerances::unused() const {
  std::vector<const ToleranceRule*> list;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const bool for_any = rules_[i].fixture.empty() && rules_[i].regime.empty();
    if (!uses_[i].matched && (uses_[i].seen_fixture || for_any) && !lacks_its_variant(rules_[i]))
      list.push_back(&rules_[i]);
  }
  return list;
}

}  // namespace kda_check::judge
