#include "session/requirements.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/names.hpp"

namespace kda_check::session {

namespace {
/// Each is a device of the variant list.
constexpr std::string_view list[] = {"gpu"};
}  // namespace

std::span<const std::string_view> requirements() { return list; }

void check_requirements(const std::vector<std::string>& names, std::span<const kda::Variant> registry) {
  for (const std::string& name : names)
    if (std::find(std::begin(list), std::end(list), name) == std::end(list))
      throw Error(ErrorKind::usage, fmt::format("--require {}: no such requirement", name), {},
                  suggest(name, {std::begin(list), std::end(list)}));
  for (const std::string& name : names)
    for (const kda::Variant& variant : registry)
      if (variant.device == name)
        if (const std::string reason = variant.unavailable(); !reason.empty())
          throw Error(ErrorKind::environment, fmt::format("--require {}: {}: {}", name, variant.name, reason),
                      {}, "kda-check list devices");
}

std::vector<report::FailedInput> missed_requirements(const std::vector<std::string>& names,
                                                     const std::set<std::string>& answered,
                                                     std::span<const kda::Variant> registry) {
  std::vector<report::FailedInput> missed;
  for (const std::string& name : without_repeats(names)) {
    const bool met = std::any_of(registry.begin(), registry.end(), [&](const kda::Variant& variant) {
      return variant.device == name && answered.count(std::string(variant.name)) > 0;
    });
    if (!met)
      missed.push_back({fmt::format("--require {0}: no variant of the {0} answered anything", name),
                        exit_code(ErrorKind::environment)});
  }
  return missed;
}

std::set<std::string> variants_that_answered(const report::Result& result) {
  std::set<std::string> names;
  for (const report::CaseResult& item : result.cases)
    if (!item.recorded && item.verdict != compare::Verdict::skipped) names.insert(item.variant);
  return names;
}

std::set<std::string> variants_that_answered(const report::GrowthResult& result) {
  std::set<std::string> names;
  for (const report::GrowthCase& item : result.cases)
    if (!item.recorded) names.insert(item.answer);
  return names;
}

std::set<std::string> variants_that_answered(const report::AttributionResult& result) {
  std::set<std::string> names;
  for (const report::Attribution& item : result.attributions) names.insert(item.variant);
  for (const report::Ladder& ladder : result.ladders)
    for (const std::string& end : {ladder.from, ladder.to}) names.insert(end.substr(0, end.find('+')));
  return names;
}

}  // namespace kda_check::session
