#include "engine/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.hpp"
#include "base/names.hpp"
#include "engine/report_reader.hpp"

namespace kda_check::engine {

namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& path, const std::string& hint = {}) {
  throw Error(ErrorKind::input, what, path, hint);
}

/// One report and where it came from.
struct Part {
  std::string path;
  report::Document document;
};

std::vector<Part> read_parts(const std::vector<std::string>& paths) {
  std::vector<Part> parts;
  for (const std::string& path : paths) {
    Part& part = parts.emplace_back(Part{path, read_report(path)});
    if (!part.document.plan) refuse("the report does not say which part of a plan it is", path);
  }
  std::ranges::sort(parts, {}, [](const Part& part) { return part.document.plan->shard; });
  const report::PlanSummary& first = *parts.front().document.plan;
  std::set<std::size_t> shards;
  for (const Part& part : parts) {
    const report::PlanSummary& plan = *part.document.plan;
    if (plan.digest != first.digest || plan.cases != first.cases || plan.shards != first.shards)
      refuse(fmt::format("it is no shard of the same run as {}", parts.front().path), part.path,
             "shards want the same words, the same files and the same devices");
    if (!shards.insert(plan.shard).second)
      refuse(fmt::format("shard {} is there twice", plan.shard), part.path);
  }
  // A report may claim any number of shards.
  constexpr std::size_t most_named = 16;
  std::vector<std::string> missing;
  for (std::size_t shard = 1; shard <= first.shards && missing.size() <= most_named; ++shard)
    if (!shards.contains(shard)) missing.push_back(fmt::format("{}", shard));
  if (missing.size() > most_named) missing.back() = "...";
  if (!missing.empty())
    refuse(fmt::format("shard {} of {} is missing", join(missing), first.shards), parts.front().path,
           "name the reports of all shards");
  return parts;
}

/// A part that says itself why cases are missing.
bool is_incomplete(const report::Document& document) {
  return document.is_interrupted() ||
         std::ranges::any_of(document.failures,
                             [](const report::Failure& failure) { return !failure.path.empty(); });
}

void check_cases(const std::vector<Part>& parts) {
  std::map<std::size_t, const Part*> seen;
  bool incomplete = false;
  for (const Part& part : parts) {
    incomplete = incomplete || is_incomplete(part.document);
    for (const report::CaseResult& item : part.document.cases) {
      const auto [other, is_new] = seen.emplace(item.number, &part);
      if (!is_new) refuse(fmt::format("case {} is in {} too", item.number, other->second->path), part.path);
    }
  }
  const std::size_t questions = parts.front().document.plan->cases;
  std::size_t told = seen.size();
  for (const Part& part : parts)
    for (const report::Section& section : part.document.sections) told += section.entries.size();
  if (!incomplete && told != questions)
    refuse(fmt::format("{} of {} cases of the plan are there", told, questions), parts.front().path);
}

}  // namespace

report::Document merged(const std::vector<std::string>& paths) {
  if (paths.empty())
    throw Error(ErrorKind::usage, "merge: wanted the reports of all shards", {},
                "kda-check merge part*.json");
  std::vector<Part> parts = read_parts(paths);
  check_cases(parts);
  report::Document whole;
  whole.command = "run";
  whole.judges = true;
  whole.plan = parts.front().document.plan;
  whole.plan->shard = whole.plan->shards = 1;
  whole.plan->demands.clear();
  std::vector<report::Demand> demands;
  // Problems in the order of their first case in the plan; those without one behind.
  std::map<std::pair<std::size_t, std::string>, report::ProblemResult> problems;
  for (Part& part : parts) {
    for (report::ProblemResult& problem : part.document.problems) {
      std::size_t first = ~std::size_t{0};
      for (const report::CaseResult& item : part.document.cases)
        if (item.path == problem.path) first = std::min(first, item.number);
      problems.emplace(std::pair{first, problem.path}, std::move(problem));
    }
    std::ranges::move(part.document.cases, std::back_inserter(whole.cases));
    std::ranges::move(part.document.sections, std::back_inserter(whole.sections));
    for (report::Failure& failure : part.document.failures)
      if (std::ranges::none_of(whole.failures,
                               [&](const auto& known) { return known.message == failure.message; }))
        whole.failures.push_back(std::move(failure));
    if (part.document.is_interrupted()) whole.signal = part.document.signal;
    std::ranges::move(part.document.plan->demands, std::back_inserter(demands));
  }
  if (!whole.is_interrupted()) std::ranges::move(report::unmet(demands), std::back_inserter(whole.failures));
  for (auto& [order, problem] : problems) whole.problems.push_back(std::move(problem));
  std::ranges::stable_sort(whole.cases, {}, &report::CaseResult::number);
  std::ranges::stable_sort(whole.sections, {}, [&](const report::Section& section) {
    return std::ranges::find(whole.problems, section.path, &report::ProblemResult::path) -
           whole.problems.begin();
  });
  return whole;
}

}  // namespace kda_check::engine
