#include "session/selftest_suite.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "report/writers.hpp"
#include "session/run.hpp"
#include "session/targets.hpp"

namespace kda_check::session {

namespace {

using compare::Verdict;

bool names(const std::vector<std::string>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// "fla_fp32_small: oracle: o: rms_ratio 0.2 > 1e-06" of the first case that did not pass; empty: all did.
std::string first_alarm(const report::Result& result, std::string_view variant) {
  for (const report::CaseResult& item : result.cases)
    if ((variant.empty() || item.variant == variant) && item.verdict != Verdict::pass &&
        item.verdict != Verdict::skipped)
      return fmt::format("{}: {}{}: {}", item.fixture,
                         variant.empty() ? fmt::format("{} {}, ", item.variant, item.dtype) : "",
                         item.against, item.reason);
  return {};
}

std::string caught(kda::Variant wrong, std::string_view like, numeric::DType of,
                   const std::vector<std::string>& tensors, const SelftestRequest& suite, const Log& log,
                   std::vector<report::FailedInput>& errors) {
  const std::string dtype(numeric::name_of(of));
  wrong.name = like;  // the rules for that variant are for this one
  for (const SuiteLine& line : suite.lines) {
    RunRequest request = line.request;
    if (!names(request.dtypes, dtype) || (!request.variants.empty() && !names(request.variants, like)))
      continue;
    request.registry = {&wrong, 1}, request.variants.clear(), request.dtypes = {dtype};
    request.threads = suite.threads;
    if (!tensors.empty()) request.judging.tensors = tensors, request.invariants = false;
    for (const std::string& target : expanded_targets(line.request.fixtures)) {
      request.fixtures = {target};
      const report::Result result = run(request, log);
      errors.insert(errors.end(), result.errors.begin(), result.errors.end());
      if (const std::string alarm = first_alarm(result, wrong.name); !alarm.empty())
        return fmt::format("{} {}", line.place, alarm);
    }
  }
  return {};
}

}  // namespace

kda::Variant variant_of(const Mutant& mutant) {
  kda::Variant row = kda::variant_named(mutant.like);
  row.name = mutant.name, row.summary = mutant.what, row.run = mutant.run;
  return row;
}

kda::Variant variant_of(const BackwardMutant& mutant) {
  kda::Variant row = kda::variant_named(mutant.like);
  row.name = mutant.name, row.summary = mutant.what, row.run_backward = mutant.run;
  return row;
}

std::string caught_in(const Mutant& mutant, const SelftestRequest& suite, const Log& log,
                      std::vector<report::FailedInput>& errors) {
  return caught(variant_of(mutant), mutant.like, mutant.dtype, {}, suite, log, errors);
}

std::string caught_in(const BackwardMutant& mutant, const SelftestRequest& suite, const Log& log,
                      std::vector<report::FailedInput>& errors) {
  std::vector<std::string> tensors;
  for (const kda::GradientRow& row : kda::gradients()) tensors.emplace_back(row.name);
  return caught(variant_of(mutant), mutant.like, mutant.dtype, tensors, suite, log, errors);
}

std::vector<SuiteRun> healthy_over(const SelftestRequest& suite, const Log& log,
                                   std::vector<report::FailedInput>& errors) {
  std::vector<SuiteRun> runs;
  std::vector<std::string> first;  // what every line gave on one thread
  for (const int threads : {1, 2}) {
    SuiteRun& done = runs.emplace_back();
    done.threads = threads;
    for (std::size_t i = 0; i < suite.lines.size(); ++i) {
      const SuiteLine& line = suite.lines[i];
      RunRequest request = line.request;
      request.threads = threads;
      const report::Result result = run(request, log);
      errors.insert(errors.end(), result.errors.begin(), result.errors.end());
      done.passed += result.count(Verdict::pass);
      done.skipped += result.count(Verdict::skipped);
      if (const std::string alarm = first_alarm(result, ""); !alarm.empty())
        done.alarms.push_back(fmt::format("{} {}", line.place, alarm));
      std::string document = report::write_json(result, {});
      if (threads == 1) {
        first.push_back(std::move(document));
      } else if (document != first[i]) {
        done.alarms.push_back(fmt::format("{}: other figures than on one thread", line.place));
      }
    }
  }
  return runs;
}

}  // namespace kda_check::session
