#include "selftest/selftest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <span>

#include "base/error.hpp"
#include "base/interruption.hpp"
#include "engine/power/faults.hpp"
#include "plan/selection.hpp"
#include "report/rows.hpp"
#include "report/writers.hpp"
#include "selftest/mutants.hpp"
#include "selftest/trials.hpp"

namespace kda_check::selftest {

namespace {

using judge::Verdict;
using kda::Pass;
using report::Show;

/// Gates of every size, an initial state, groups of heads and a ragged last chunk: each mutant shows on it.
constexpr char target[] = "lb_real:T=130,H=2,HV=4,K=48,V=32,C=64";
/// As layers are; only K = V hides a scale of the wrong one.
constexpr char production_target[] = "lb_real:T=1000,H=4,K=128,V=128";

/// All that can run here, and the mutants, in the order of dtypes.
std::vector<Subject> subjects_of(Pass pass) {
  using numeric::DType;
  const std::vector<Subject> wrong = mutants(pass);
  std::vector<Subject> subjects;
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
    if (pass == Pass::backward && numeric::format_of(dtype).bytes == 2) continue;
    for (const kda::Variant* const variant : plan::variants_of({})) {
      if (!plan::why_no_pass(pass, *variant).empty()) continue;
      Subject subject{*variant, variant->name, variant->name, dtype, pass};
      subject.under_laws = pass == Pass::forward;
      subjects.push_back(std::move(subject));
    }
    std::ranges::copy_if(wrong, std::back_inserter(subjects),
                         [&](const Subject& one) { return one.dtype == dtype; });
  }
  return subjects;
}

report::Section rows_about(const std::vector<Subject>& subjects, const std::string& suite) {
  report::Section section;
  section.key = "rows";
  section.tabular = true;
  std::map<std::string_view, std::size_t> count;
  for (const Subject& subject : subjects) {
    const std::string_view finding = subject.finding(!suite.empty());
    ++count[finding];
    std::vector<std::string> checks;
    std::string who = fmt::format("{} {}", subject.name, numeric::name_of(subject.dtype));
    if (!subject.size.empty()) who += ", " + subject.size;
    for (const std::string& check : subject.caught_by) checks.push_back(fmt::format("{}: by {}", who, check));
    const std::string over_suite =
        suite.empty() || !subject.is_of_suite()
            ? std::string()
            : fmt::format("{}: {}: {}", who, suite,
                          subject.in_suite.empty() ? "passes every line" : "first at " + subject.in_suite);
    report::Entry& entry = section.add_fields({{{"name", {}}, std::string(subject.name)},
                                               {{"dtype", {}}, std::string(numeric::name_of(subject.dtype))},
                                               {{"size", {}}, subject.size},
                                               {{"pass", {}}, std::string(kda::name_of(subject.pass))},
                                               {{"healthy", {}, Show::data}, subject.healthy},
                                               {{"finding", {}}, std::string(finding)},
                                               {{"what", {}}, std::string(subject.variant.summary)},
                                               {{"caught_by", {}, Show::sentence}, checks},
                                               {{"in_suite", {}, Show::data}, subject.in_suite},
                                               {{"suite", {}, Show::sentence}, over_suite}});
    const bool right = finding == "passes" || finding == "caught";
    const bool hidden = finding == "not seen" || finding == "below the floor";
    entry.verdict = right ? Verdict::pass : hidden ? Verdict::skipped : Verdict::fail;
    if (!right && !hidden) entry.reason = finding;
  }
  section.notes.push_back(
      fmt::format("{} wrong kernels caught, {} missed; {} healthy ones pass, {} false alarms",
                  count["caught"], count["missed"], count["passes"], count["false alarm"]));
  if (count["not seen"] != 0)
    section.notes.push_back(fmt::format("{} that this problem does not show", count["not seen"]));
  section.notes.push_back(fmt::format("{} of half of what `power` says is seen: {} pass, {} do not",
                                      count["below the floor"] + count["seen below the floor"],
                                      count["below the floor"], count["seen below the floor"]));
  return section;
}

/// The variants of this machine over the whole suite: all pass, the same on one thread and on two.
report::Section healthy_over(const std::string& suite, Judgement& judgement) {
  report::Section section;
  section.key = "suite_runs";
  section.title = "healthy kernels over " + suite;
  section.tabular = true;
  section.columns = {{"threads", {}, Show::count},
                     {"passed", {}, Show::count},
                     {"skipped", {}, Show::count},
                     {"alarms", {}, Show::sentence}};
  std::string first;
  for (const int threads : {1, 2}) {
    plan::Request request;
    request.targets = {suite};
    const report::Document document = judgement.run(judgement.planned(request), threads);
    std::vector<std::string> alarms;
    for (const report::CaseResult& item : document.cases)
      if (is_alarm(item))
        alarms.push_back(fmt::format("FALSE ALARM  {} {}, {}", item.variant, item.dtype, alarm_text(item)));
    std::string text = report::write_json(document, {});
    if (threads == 1)
      first = std::move(text);
    else if (text != first)
      alarms.emplace_back("other figures than on one thread");
    report::Entry& entry =
        section.add({std::int64_t{threads}, static_cast<std::int64_t>(document.count(Verdict::pass)),
                     static_cast<std::int64_t>(document.count(Verdict::skipped)), alarms});
    entry.verdict = alarms.empty() && document.count(Verdict::pass) > 0 ? Verdict::pass : Verdict::fail;
    if (!alarms.empty()) entry.reason = report::counted(alarms.size(), "alarm");
  }
  return section;
}

report::Section devices(bool production) {
  report::Section section;
  section.key = "devices";
  section.tabular = true;
  section.columns = {{"variant", {}}, {"state", "on this machine"}};
  for (const kda::Variant& variant : kda::variants()) {
    const std::string reason = variant.unavailable();
    section.add({std::string(variant.name), reason.empty() ? "here" : "not tried, " + reason});
  }
  section.notes = {"floating point: round to nearest, subnormals kept, nothing fused, fma rounds once",
                   production ? fmt::format("problem: {}", production_target)
                              : fmt::format("problems: {}; {} (gradients)", target, gradient_target)};
  return section;
}

}  // namespace

void selftest(const SelftestRequest& request, report::Document& document) {
  Judgement judgement(request);
  const int threads = request.resources.threads;
  const std::string suite = request.production ? std::string() : request.suite;
  const bool with_suite = !suite.empty();
  const auto is_wanted = [&](std::string_view name) {
    return request.mutants.empty() || std::ranges::find(request.mutants, name) != request.mutants.end();
  };
  const auto wanted = [&](Pass pass) {
    std::vector<Subject> found = subjects_of(pass);
    std::erase_if(found, [&](const Subject& subject) {
      return subject.mutant &&
             (!is_wanted(subject.name) || (request.production && subject.shows == Subject::Shows::in_suite));
    });
    return found;
  };
  std::vector<Subject> forward = wanted(Pass::forward), at_floors,
                       backward = request.production ? std::vector<Subject>() : wanted(Pass::backward);
  for (const std::string& name : request.mutants)
    if (const auto is_it = [&](const Subject& one) { return one.mutant && one.name == name; };
        std::ranges::none_of(forward, is_it) && std::ranges::none_of(backward, is_it) &&
        std::ranges::find(engine::fault_rows(), name, &engine::FaultRow::key) == engine::fault_rows().end())
      throw Error(ErrorKind::usage, fmt::format("no wrong kernel that is tried here is called '{}'", name),
                  {}, "the report of a selftest names all of them");
  const auto joined = [&] {
    std::vector<Subject> all;
    for (const std::vector<Subject>* const some : {&forward, &at_floors, &backward})
      all.insert(all.end(), some->begin(), some->end());
    return all;
  };
  document.sections = {devices(request.production)};
  try {
    const auto try_on = [&](std::vector<Subject>& some, const char* problem) {
      try_on_problem(some, problem, judgement, threads);
      for (Subject& subject : some) subject.tried = !with_suite || !subject.is_of_suite();
    };
    const char* const problem = request.production ? production_target : target;
    try_on(forward, problem);
    if (std::ranges::any_of(engine::fault_rows(), is_wanted, &engine::FaultRow::key)) {
      at_floors = mutants_at_floors(problem, is_wanted, threads, request.resources.limits.memory_budget);
      try_on(at_floors, problem);
    }
    try_on(backward, gradient_target);
    if (with_suite)
      for (std::vector<Subject>* const some : {&forward, &backward})
        try_on_suite(*some, suite, judgement, threads);
    document.sections.push_back(rows_about(joined(), suite));
    if (with_suite && request.variants_over_suite)
      document.sections.push_back(healthy_over(suite, judgement));
  } catch (const Interrupted&) {
    if (document.sections.size() == 1) {  // nothing is known of those that are missing
      std::vector<Subject> subjects = joined();
      std::erase_if(subjects, [](const Subject& subject) { return !subject.tried; });
      document.sections.push_back(rows_about(subjects, suite));
    }
    document.failures = std::move(judgement.failures);
    throw;
  }
  document.failures = std::move(judgement.failures);
}

}  // namespace kda_check::selftest
