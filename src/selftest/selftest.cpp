#include "selftest/selftest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/interruption.hpp"
#include "engine/engine.hpp"
#include "plan/selection.hpp"
#include "report/rows.hpp"
#include "report/writers.hpp"
#include "selftest/mutants.hpp"

namespace kda_check::selftest {

namespace {

using judge::Verdict;
using kda::Pass;
using report::Show;

/// Gates of every size, an initial state, groups of heads and a ragged last chunk: each mutant shows on it.
constexpr char target[] = "lb_real:T=130,H=2,HV=4,K=48,V=32,C=64";
/// For gradients, with a loss: norm, gate, bias and sigmoid in the kernel besides.
constexpr char gradient_target[] = "bwd_chain:T=130,H=2,HV=4,K=48,V=32,C=64";

/// A kernel on trial, and what was found about it.
struct Subject {
  kda::Variant variant;   ///< under its own name
  std::string_view like;  ///< the variant whose limits are its own
  numeric::DType dtype;
  bool healthy, mutant;
  Pass pass;
  std::vector<std::string> caught_by =
      {};                     ///< "oracle: o rms_ratio 0.2 > 1e-06", one for each check that failed
  bool passed = false;        ///< some comparison passed
  std::string in_suite = {};  ///< the first line of the suite that catches it
  bool tried = false;         ///< on everything it is to be tried on

  /// Wrong and caught, by the suite as well, or healthy and let pass.
  bool as_it_should(bool with_suite) const {
    const bool counts = with_suite && mutant;
    if (healthy) return caught_by.empty() && passed && (!counts || in_suite.empty());
    return !caught_by.empty() && (!counts || !in_suite.empty());
  }
};

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

template <class Mutants>
void add_mutants(std::vector<Subject>& subjects, Mutants mutants, numeric::DType dtype, Pass pass) {
  for (const auto& mutant : mutants)
    if (mutant.dtype == dtype)
      subjects.push_back({variant_of(mutant), mutant.like, dtype, mutant.healthy, true, pass});
}

/// All that can run here, and the mutants, in the order of dtypes.
std::vector<Subject> subjects_of(Pass pass) {
  std::vector<Subject> subjects;
  for (const numeric::DType dtype : {numeric::DType::fp64, numeric::DType::fp32, numeric::DType::bf16}) {
    if (pass == Pass::backward && dtype == numeric::DType::bf16) continue;
    for (const kda::Variant* const variant : plan::variants_of({}))
      if (plan::why_no_pass(pass, *variant).empty())
        subjects.push_back({*variant, variant->name, dtype, true, false, pass});
    if (pass == Pass::forward)
      add_mutants(subjects, mutants(), dtype, pass);
    else
      add_mutants(subjects, backward_mutants(), dtype, pass);
  }
  return subjects;
}

/// Runs requests as the command `run` does.
class Gate {
 public:
  explicit Gate(const SelftestRequest& request) : request_(request) {}

  /// `enough`: asked after each source; true: the rest is not run.
  report::Document run(const plan::Request& words, int threads,
                       const std::function<bool(const report::Document&)>& enough = {}) {
    plan::Planning planning;
    planning.limits = request_.resources.limits, planning.parse_line = request_.parse_line;
    const plan::Plan plan = plan::planned(words, planning);
    report::Document document;
    document.command = "run", document.judges = true;
    document.failures = plan.failures;
    engine::Execution execution{request_.resources};
    execution.resources.threads = threads;
    execution.enough = [&] { return enough && enough(document); };
    engine::execute(plan, execution, [&](report::Document part) { document.add(std::move(part)); });
    std::ranges::copy(document.failures, std::back_inserter(failures));
    return document;
  }

  std::vector<report::Failure> failures;

 private:
  const SelftestRequest& request_;
};

plan::Request request_for(Pass pass, numeric::DType dtype) {
  plan::Request request;
  request.selection.dtypes = plan::Names{std::string(numeric::name_of(dtype))};
  request.selection.pass = pass;
  return request;
}

bool is_alarm(const report::CaseResult& item) {
  return item.verdict != Verdict::pass && item.verdict != Verdict::skipped;
}

/// Each on the problem of the selftest, those of one dtype together.
void try_on_problem(std::span<Subject> subjects, const char* problem, Gate& gate, int threads,
                    bool with_suite) {
  for (std::size_t first = 0, end; first < subjects.size(); first = end) {
    for (end = first; end < subjects.size() && subjects[end].dtype == subjects[first].dtype;) ++end;
    std::vector<kda::Variant> registry;
    plan::Request request = request_for(subjects[first].pass, subjects[first].dtype);
    request.selection.variants.emplace();
    for (std::size_t i = first; i < end; ++i) {
      registry.push_back(subjects[i].variant);
      request.selection.variants->emplace_back(subjects[i].variant.name);
    }
    request.registry = registry;
    request.targets = {fmt::format("{},dtype={}", problem, numeric::name_of(subjects[first].dtype))};
    request.selection.against = plan::Names{"oracle"};
    if (subjects[first].pass == Pass::forward) request.invariants.emplace();
    for (const report::CaseResult& item : gate.run(request, threads).cases)
      for (std::size_t i = first; i < end; ++i) {
        if (item.variant != subjects[i].variant.name || item.verdict == Verdict::skipped) continue;
        if (item.verdict == Verdict::pass)
          subjects[i].passed = true;
        else
          subjects[i].caught_by.push_back(item.against + ": " + item.reason);
      }
    for (std::size_t i = first; i < end; ++i) subjects[i].tried = !with_suite || !subjects[i].mutant;
  }
}

/// "@ci:8 cases/fixtures/fla_fp32_small.h5: oracle: o: rms_ratio 0.2 > 1e-06"
std::string alarm_text(const report::CaseResult& item) {
  return fmt::format("{} {}: {}: {}", item.place, item.path, item.against, item.reason);
}

/// The mutant takes the place of the variant it is like, in its dtype, where a line of the suite names both.
void try_on_suite(Subject& subject, const std::string& suite, Gate& gate, int threads) {
  std::vector<kda::Variant> registry(kda::variants().begin(), kda::variants().end());
  for (kda::Variant& row : registry)
    if (row.name == subject.like) {
      row.run = subject.variant.run;
      row.run_backward = subject.variant.run_backward;
    }
  plan::Request request = request_for(subject.pass, subject.dtype);
  request.registry = registry;
  request.targets = {suite};
  request.selection.variants = plan::Names{std::string(subject.like)};
  request.selection.recorded.emplace();
  const auto found = [](const report::Document& document) {
    return std::ranges::find_if(document.cases, is_alarm);
  };
  const report::Document document = gate.run(
      request, threads, [&](const report::Document& part) { return found(part) != part.cases.end(); });
  if (const auto alarm = found(document); alarm != document.cases.end())
    subject.in_suite = alarm_text(*alarm);
  subject.tried = true;
}

report::Section rows_about(const std::vector<Subject>& subjects, const std::string& suite) {
  report::Section section;
  section.key = "rows";
  section.tabular = true;
  section.columns = {{"name", {}},
                     {"dtype", {}},
                     {"pass", {}},
                     {"healthy", {}, Show::data},
                     {"finding", {}},
                     {"what", {}},
                     {"caught_by", {}, Show::sentence},
                     {"in_suite", {}, Show::data},
                     {"suite", {}, Show::sentence}};
  for (const Subject& subject : subjects) {
    const bool right = subject.as_it_should(!suite.empty());
    const char* const finding =
        subject.healthy ? (right ? "passes" : "false alarm") : (right ? "caught" : "missed");
    std::vector<std::string> checks;
    const std::string who = fmt::format("{} {}", subject.variant.name, numeric::name_of(subject.dtype));
    for (const std::string& check : subject.caught_by) checks.push_back(fmt::format("{}: by {}", who, check));
    const std::string over_suite =
        suite.empty() || !subject.mutant
            ? std::string()
            : fmt::format("{}: {}: {}", who, suite,
                          subject.in_suite.empty() ? "passes every line" : "first at " + subject.in_suite);
    report::Entry& entry =
        section.add({std::string(subject.variant.name), std::string(numeric::name_of(subject.dtype)),
                     std::string(kda::name_of(subject.pass)), subject.healthy, std::string(finding),
                     std::string(subject.variant.summary), checks, subject.in_suite, over_suite});
    entry.verdict = right ? Verdict::pass : Verdict::fail;
    if (!right) entry.reason = finding;
  }
  const auto count = [&](bool healthy, bool right) {
    return std::ranges::count_if(subjects, [&](const Subject& subject) {
      return subject.healthy == healthy && subject.as_it_should(!suite.empty()) == right;
    });
  };
  section.notes.push_back(
      fmt::format("{} wrong kernels caught, {} missed; {} healthy ones pass, {} false alarms",
                  count(false, true), count(false, false), count(true, true), count(true, false)));
  return section;
}

/// The variants of this machine over the whole suite: all pass, the same on one thread and on two.
report::Section healthy_over(const std::string& suite, Gate& gate) {
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
    const report::Document document = gate.run(request, threads);
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

report::Section devices() {
  report::Section section;
  section.key = "devices";
  section.tabular = true;
  section.columns = {{"variant", {}}, {"state", "on this machine"}};
  for (const kda::Variant& variant : kda::variants()) {
    const std::string reason = variant.unavailable();
    section.add({std::string(variant.name), reason.empty() ? "here" : "not tried, " + reason});
  }
  section.notes = {"floating point: round to nearest, subnormals kept, nothing fused, fma rounds once",
                   fmt::format("problems: {}; {} (gradients)", target, gradient_target)};
  return section;
}

}  // namespace

void selftest(const SelftestRequest& request, report::Document& document) {
  Gate gate(request);
  const int threads = request.resources.threads;
  const bool with_suite = !request.suite.empty();
  std::vector<Subject> subjects = subjects_of(Pass::forward), backward = subjects_of(Pass::backward);
  const std::size_t forward = subjects.size();
  std::ranges::move(backward, std::back_inserter(subjects));
  document.sections = {devices()};
  try {
    const std::span<Subject> all = subjects;
    try_on_problem(all.first(forward), target, gate, threads, with_suite);
    try_on_problem(all.subspan(forward), gradient_target, gate, threads, with_suite);
    for (Subject& subject : subjects) {
      check_interruption();
      if (with_suite && subject.mutant) try_on_suite(subject, request.suite, gate, threads);
    }
    document.sections.push_back(rows_about(subjects, request.suite));
    if (with_suite) document.sections.push_back(healthy_over(request.suite, gate));
  } catch (const Interrupted&) {
    if (document.sections.size() == 1) {  // nothing is known of those that are missing
      std::erase_if(subjects, [](const Subject& subject) { return !subject.tried; });
      document.sections.push_back(rows_about(subjects, request.suite));
    }
    document.failures = std::move(gate.failures);
    throw;
  }
  document.failures = std::move(gate.failures);
}

}  // namespace kda_check::selftest
