#include "plan/planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <system_error>

#include "base/error.hpp"
#include "base/names.hpp"
#include "plan/builder.hpp"
#include "plan/requirements.hpp"
#include "plan/suite.hpp"

namespace kda_check::plan {

namespace {

/// A request and the targets it is about.
struct Line {
  std::shared_ptr<const Request> request;
  std::vector<Target> targets;
};

void add_new(std::vector<Target>& targets, std::vector<Target> more) {
  for (Target& target : more) {
    const auto same = [&](const Target& known) { return known.path == target.path; };
    if (std::none_of(targets.begin(), targets.end(), same)) targets.push_back(std::move(target));
  }
}

Line line_of_suite(const Suite& suite, const Suite::Line& line, const Request& command,
                   const Planning& planning) {
  try {
    Request own = planning.parse_line(line.words);
    own.place = suite.place(line);
    own.judging.allclose_source = own.place;
    for (judge::LimitLayer& layer : own.judging.limits) layer.source = own.place;
    own.tolerance = suite.path_of(own.tolerance);
    own.registry = command.registry;
    check_words(own);
    Line result;
    for (const std::string& target : own.targets) {
      if (target.starts_with("@"))
        throw Error(ErrorKind::usage, fmt::format("'{}' inside a suite: suites do not nest", target), {},
                    "name all suites on the command line");
      add_new(result.targets, expanded(target, suite.folder, suite.called));
    }
    if (result.targets.empty()) throw Error(ErrorKind::usage, "the line names no target");
    result.request = std::make_shared<const Request>(under(std::move(own), command));
    return result;
  } catch (const Error& error) {
    throw error.in(suite.place(line));
  }
}

std::vector<Line> lines_of(const Request& command, const Planning& planning, Names& inputs) {
  std::vector<Line> lines;
  const auto request = std::make_shared<const Request>(command);
  for (const std::string& target : without_repeats(command.targets)) {
    if (!is_suite(target)) {
      if (lines.empty() || lines.back().request != request) lines.push_back({request, {}});
      add_new(lines.back().targets, expanded(target));
      continue;
    }
    if (command.task != Task::judge)
      throw Error(ErrorKind::usage, fmt::format("'{}': suites are for run", target), {},
                  fmt::format("kda-check run {}", target));
    const Suite suite = load_suite(target);
    inputs.push_back(suite.path);
    for (const Suite::Line& line : suite.lines)
      lines.push_back(line_of_suite(suite, line, command, planning));
  }
  return lines;
}

std::vector<Requirement> required_by(const Request& command, const std::vector<Line>& lines) {
  std::vector<Requirement> list;
  const auto add = [&](const Request& request) {
    for (const std::string& name : request.required)
      if (Requirement one{name, request.place}; std::ranges::find(list, one) == list.end())
        list.push_back(std::move(one));
  };
  add(command);
  for (const Line& line : lines)
    if (line.request->place != command_line) add(*line.request);
  return list;
}

/// Reports and baselines know a fixture by its name, and those of the program's suites are called alike
/// wherever it is installed: of a file of the user's so called nobody could tell which of the two it is.
void refuse_two_of_a_name(const std::vector<Line>& lines) {
  std::map<std::string, std::string> paths;
  for (const Line& line : lines)
    for (const Target& target : line.targets) {
      const std::string& known = paths.emplace(target.name, target.path).first->second;
      std::error_code failure;
      if (known != target.path && !std::filesystem::equivalent(known, target.path, failure))
        throw Error(ErrorKind::usage,
                    fmt::format("two fixtures are called '{}': {} and {}", target.name, known, target.path),
                    {}, fmt::format("type yours as ./{}", target.name));
    }
}

/// Leaves the sources of one part, with all their problems; numbers stay those of the whole. So a fixture is
/// read, told of and merged once.
void cut(Plan& plan) {
  if (plan.shard.is_whole()) return;
  std::vector<double> costs;           // of each source
  std::vector<std::size_t> source_of;  // of each problem; those of a source stand together
  for (std::size_t i = 0; i < plan.problems.size(); ++i) {
    if (i == 0 || plan.problems[i].source != plan.problems[i - 1].source) costs.push_back(0);
    costs.back() += plan.problems[i].seconds;
    source_of.push_back(costs.size() - 1);
  }
  const std::vector<std::size_t> parts = balanced(costs, plan.shard.count);
  std::vector<Problem> mine;
  for (std::size_t i = 0; i < source_of.size(); ++i)
    if (parts[source_of[i]] == plan.shard.index - 1) mine.push_back(std::move(plan.problems[i]));
  plan.problems = std::move(mine);
}

}  // namespace

Plan planned(const Request& command, const Planning& planning) {
  check_words(command);
  Plan plan;
  const std::vector<Line> lines = lines_of(command, planning, plan.inputs);
  if (lines.empty())
    throw Error(ErrorKind::usage, fmt::format("{}: no fixture given", command.command), {},
                fmt::format("kda-check {0} FILE.h5, or kda-check {0} corr_keys", command.command));
  refuse_two_of_a_name(lines);
  plan.command = command.command;
  plan.shard = planning.shard;
  plan.narrowed = !command.selection.is_empty() || !command.arithmetic.empty() || command.chunk_size ||
                  command.oracle == OracleChoice::none;
  plan.required = required_by(command, lines);
  check_devices(plan.required, command.registry);
  Builder builder(plan, planning.limits);
  for (const Line& line : lines) builder.add(line.request, line.targets);
  builder.finish();
  plan.narrowed = plan.narrowed || !plan.shard.is_whole();
  std::ranges::move(never_asked(plan, command), std::back_inserter(plan.failures));
  cut(plan);
  return plan;
}

}  // namespace kda_check::plan
