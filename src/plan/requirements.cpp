#include "plan/requirements.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/names.hpp"
#include "plan/selection.hpp"

namespace kda_check::plan {

namespace {

constexpr std::string_view list[] = {"gpu"};

bool is_device(std::string_view name) { return std::ranges::find(list, name) != std::end(list); }

/// Some case of the plan is an answer of that name, or of a variant of that device.
bool is_planned(const Plan& plan, std::string_view name) {
  const auto is_asked = [&](const Problem& problem, const Case& item) {
    if (!is_device(name)) return item.who == name;
    return item.answer && problem.answers[*item.answer].is_computed() &&
           problem.answers[*item.answer].variant->device == name;
  };
  return std::ranges::any_of(plan.problems, [&](const Problem& problem) {
    return std::ranges::any_of(problem.cases, [&](const Case& item) { return is_asked(problem, item); });
  });
}

/// What is there in its place.
std::string names_there(const Plan& plan) {
  Names names;
  for (const Problem& problem : plan.problems)
    for (const fixture::ExpectedGroup& group : problem.source->expected()) names.push_back(group.name);
  names = without_repeats(std::move(names));
  return names.empty() ? "the files have no recorded answers" : "recorded there: " + join(names);
}

}  // namespace

std::span<const std::string_view> devices() { return list; }

void check_devices(const Names& required, std::span<const kda::Variant> registry) {
  for (const std::string& name : required)
    for (const kda::Variant& variant : registry)
      if (variant.device == name || variant.name == name)
        if (const std::string reason = variant.unavailable(); !reason.empty())
          throw Error(ErrorKind::environment,
                      variant.name == name ? fmt::format("--require {}: {}", name, reason)
                                           : fmt::format("--require {}: {}: {}", name, variant.name, reason),
                      {}, "kda-check list devices");
}

std::vector<report::Failure> never_asked(const Plan& plan) {
  std::vector<report::Failure> missing;
  for (const std::string& name : plan.required) {
    if (is_planned(plan, name)) continue;
    if (is_device(name))
      missing.push_back({fmt::format("--require {0}: no variant of the {0} is selected", name),
                         exit_code(ErrorKind::environment),
                         {}});
    else
      missing.push_back(
          {fmt::format("--require {}: nobody of that name is to answer; {}", name, names_there(plan)),
           1,
           {}});
  }
  return missing;
}

std::vector<report::Failure> missing_answers(const Plan& plan, const Request& command,
                                             const Answerers& answerers) {
  // No structured binding: the lambdas of clang 14 cannot have those.
  const std::set<std::string>&answered = answerers.answered, &failed = answerers.failed;
  const std::map<std::string, std::string>& skipped = answerers.skipped;
  const auto reason_of = [&](const std::string& name) {
    const auto found = skipped.find(name);
    return found == skipped.end() ? std::string("no reason is known") : found->second;
  };
  std::vector<report::Failure> missing;
  for (const std::string& name : plan.required) {
    if (!is_planned(plan, name) || failed.contains(name)) continue;
    if (is_device(name)) {
      const bool met = std::ranges::any_of(command.registry, [&](const kda::Variant& variant) {
        const std::string own(variant.name);
        return variant.device == name && (answered.contains(own) || failed.contains(own));
      });
      if (!met)
        missing.push_back({fmt::format("--require {0}: no variant of the {0} answered anything", name),
                           exit_code(ErrorKind::environment),
                           {}});
    } else if (!answered.contains(name)) {
      missing.push_back(
          {fmt::format("--require {}: it answered nothing; skipped everywhere: {}", name, reason_of(name)),
           1,
           {}});
    }
  }
  Names named = command.selection.variants.value_or(Names{});
  const Names recorded = command.selection.recorded.value_or(Names{});
  named.insert(named.end(), recorded.begin(), recorded.end());
  if (command.external) named.push_back(command.external->name);
  for (const std::string& name : without_repeats(std::move(named)))
    if (!answered.contains(name) && !failed.contains(name) && !has(plan.required, name) &&
        is_planned(plan, name))
      missing.push_back(
          {fmt::format("{} answered nothing: skipped everywhere: {}", name, reason_of(name)), 1, {}});
  return missing;
}

}  // namespace kda_check::plan
