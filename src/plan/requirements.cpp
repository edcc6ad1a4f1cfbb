#include "plan/requirements.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/error.hpp"
#include "base/names.hpp"
#include "kda/problem/gradients.hpp"
#include "plan/selection.hpp"

namespace kda_check::plan {

namespace {

constexpr std::string_view device_names[] = {"gpu"};

bool is_device(std::string_view name) {
  return std::ranges::find(device_names, name) != std::end(device_names);
}

/// Whoever ordered it, or the line of a suite that requires it.
bool counts_for(const Requirement& required, std::string_view place) {
  return required.place == command_line || required.place == place;
}

std::string title(const Requirement& required) {
  const std::string option = "--require " + required.name;
  return required.place == command_line ? option : fmt::format("{} ({})", option, required.place);
}

/// Some case of the plan is an answer of that name, or of a variant of that device.
bool is_planned(const Plan& plan, const Requirement& required) {
  const auto is_asked = [&](const Problem& problem, const Case& item) {
    if (!counts_for(required, item.asked->place)) return false;
    if (!is_device(required.name)) return item.who == required.name;
    return item.answer && problem.answers[*item.answer].is_computed() &&
           problem.answers[*item.answer].variant->device == required.name;
  };
  return std::ranges::any_of(plan.problems, [&](const Problem& problem) {
    return std::ranges::any_of(problem.cases, [&](const Case& item) { return is_asked(problem, item); });
  });
}

/// Recorded answers of that name that have neither o nor a gradient: a state alone is no answer.
std::vector<report::Failure> hollow(const Plan& plan, const Requirement& required) {
  std::vector<report::Failure> failures;
  std::set<const Source*> seen;
  for (const Problem& problem : plan.problems) {
    const fixture::ExpectedGroup* const group = problem.source->expected_named(required.name);
    const bool counts = std::ranges::any_of(problem.cases, [&](const Case& item) {
      return item.who == required.name && counts_for(required, item.asked->place);
    });
    if (group == nullptr || !counts || !seen.insert(problem.source.get()).second) continue;
    const bool answers = group->tensor("o") != nullptr ||
                         std::ranges::any_of(kda::gradients(), [&](const kda::GradientRow& row) {
                           return group->tensor(row.name) != nullptr;
                         });
    if (answers) continue;
    const std::string& path = problem.source->target().name;
    failures.push_back({fmt::format("{}: expected/{} has neither o nor a gradient ({})", title(required),
                                    required.name, path),
                        1, path});
  }
  return failures;
}

/// What is there in its place.
std::string names_there(const Plan& plan, const Requirement& required) {
  Names names;
  for (const Problem& problem : plan.problems) {
    const bool counts = problem.cases.empty() || std::ranges::any_of(problem.cases, [&](const Case& item) {
                          return counts_for(required, item.asked->place);
                        });
    if (!counts) continue;
    for (const fixture::ExpectedGroup& group : problem.source->expected()) names.push_back(group.name);
  }
  names = without_repeats(std::move(names));
  if (has(names, required.name)) return "it is recorded, and the options leave it out";
  return names.empty() ? "the files have no recorded answers" : "recorded there: " + join(names);
}

/// Whose answers the command line asks for by name, but for those that are required.
Names named_answers(const Plan& plan, const Request& command) {
  Names named = command.selection.variants.value_or(Names{});
  const Names recorded = command.selection.recorded.value_or(Names{});
  named.insert(named.end(), recorded.begin(), recorded.end());
  if (command.external) named.push_back(command.external->name);
  named = without_repeats(std::move(named));
  std::erase_if(named, [&](const std::string& name) {
    return std::ranges::find(plan.required, Requirement{name}) != plan.required.end();
  });
  return named;
}

/// Of those nothing is judged, though something is. Of recorded ones each file says it.
std::vector<report::Failure> named_in_vain(const Plan& plan, const Request& command) {
  std::vector<report::Failure> failures;
  if (command.task != Task::judge || plan.cases == 0 || !plan.failures.empty()) return failures;
  const Selection& words = command.selection;
  std::string options = words_for_tensors(words);
  if (words.against) options += (options.empty() ? "--against " : " --against ") + join(*words.against, ",");
  for (const std::string& name : named_answers(plan, command))
    if (!has(words.recorded.value_or(Names{}), name) && !is_planned(plan, {name}))
      failures.push_back(
          {fmt::format("nothing of {} is judged: {}", name,
                       options.empty() ? "nobody asks for it" : options + " leaves out all it has"),
           1,
           {}});
  return failures;
}

}  // namespace

std::span<const std::string_view> devices() { return device_names; }

void check_devices(std::span<const Requirement> required, std::span<const kda::Variant> registry) {
  for (const Requirement& item : required)
    for (const kda::Variant& variant : registry)
      if (variant.device == item.name || variant.name == item.name)
        if (const std::string reason = variant.unavailable(); !reason.empty())
          throw Error(ErrorKind::environment,
                      variant.name == item.name
                          ? fmt::format("--require {}: {}", item.name, reason)
                          : fmt::format("--require {}: {}: {}", item.name, variant.name, reason),
                      item.place == command_line ? std::string() : item.place, "kda-check list devices");
}

std::vector<report::Failure> never_asked(const Plan& plan, const Request& command) {
  std::vector<report::Failure> missing = named_in_vain(plan, command);
  for (const Requirement& required : plan.required) {
    if (is_planned(plan, required)) {
      std::ranges::move(hollow(plan, required), std::back_inserter(missing));
      continue;
    }
    if (is_device(required.name))
      missing.push_back({fmt::format("{}: no variant of the {} is selected", title(required), required.name),
                         exit_code(ErrorKind::environment),
                         {}});
    else
      missing.push_back({fmt::format("{}: nobody of that name is to answer; {}", title(required),
                                     names_there(plan, required)),
                         1,
                         {}});
  }
  return missing;
}

std::vector<report::Demand> demands(const Plan& plan, const Request& command,
                                    std::span<const Turnout> turnouts) {
  const auto has_answered = [&](const Requirement& required, std::string_view name) {
    return std::ranges::any_of(turnouts, [&](const Turnout& turnout) {
      return turnout.outcome != Turnout::Outcome::skipped && turnout.who == name &&
             counts_for(required, turnout.place);
    });
  };
  const auto reason_of = [&](const Requirement& required) -> std::string {
    for (const Turnout& turnout : turnouts)
      if (!turnout.reason.empty() && turnout.who == required.name && counts_for(required, turnout.place))
        return turnout.reason;
    return "no reason is known";
  };
  std::vector<report::Demand> list;
  for (const Requirement& required : plan.required) {
    if (!is_planned(plan, required)) continue;
    const std::string what = title(required);
    if (is_device(required.name)) {
      const bool met = std::ranges::any_of(command.registry, [&](const kda::Variant& variant) {
        return variant.device == required.name && has_answered(required, variant.name);
      });
      list.push_back({what,
                      met,
                      {fmt::format("{}: no variant of the {} answered anything", what, required.name),
                       exit_code(ErrorKind::environment),
                       {}}});
    } else {
      list.push_back(
          {what,
           has_answered(required, required.name),
           {fmt::format("{}: it answered nothing; skipped everywhere: {}", what, reason_of(required)),
            1,
            {}}});
    }
  }
  for (const std::string& name : named_answers(plan, command)) {
    const Requirement anywhere{name};
    if (is_planned(plan, anywhere))
      list.push_back(
          {name,
           has_answered(anywhere, name),
           {fmt::format("{} answered nothing: skipped everywhere: {}", name, reason_of(anywhere)), 1, {}}});
  }
  return list;
}

}  // namespace kda_check::plan
