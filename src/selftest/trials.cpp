#include "selftest/trials.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/engine.hpp"

namespace kda_check::selftest {

using judge::Verdict;
using kda::Pass;

bool is_alarm(const report::CaseResult& item) {
  return item.verdict != Verdict::pass && item.verdict != Verdict::skipped;
}

std::string alarm_text(const report::CaseResult& item) {
  return fmt::format("{} {}: {}: {}", item.place, item.path, item.against, item.reason);
}

plan::Plan Judgement::planned(const plan::Request& words) const {
  plan::Planning planning;
  planning.limits = request_.resources.limits, planning.parse_line = request_.parse_line;
  return plan::planned(words, planning);
}

report::Document Judgement::run(const plan::Plan& plan, int threads) {
  report::Document document;
  document.command = "run", document.judges = true;
  document.failures = plan.failures;
  engine::Execution execution{request_.resources};
  execution.resources.threads = threads;
  engine::execute(plan, execution, [&](report::Document part) { document.add(std::move(part)); });
  std::ranges::copy(document.failures, std::back_inserter(failures));
  return document;
}

namespace {

void try_some(std::span<Subject* const> subjects, const char* problem, Judgement& judgement, int threads) {
  if (subjects.empty()) return;
  const Subject& first = *subjects.front();
  const std::string_view dtype = numeric::name_of(first.dtype);
  std::vector<kda::Variant> registry;
  std::map<std::string, Subject*, std::less<>> known;
  plan::Request request;
  request.selection.variants.emplace();
  for (Subject* const subject : subjects) {
    registry.push_back(subject->variant);
    request.selection.variants->emplace_back(subject->variant.name);
    known.emplace(subject->variant.name, subject);
  }
  request.registry = registry;
  request.targets = {fmt::format("{},dtype={}", problem, dtype)};
  request.selection.dtypes = plan::Names{std::string(dtype)};
  request.selection.pass = first.pass;
  request.selection.against = plan::Names{"oracle"};
  if (first.under_laws) request.invariants.emplace();
  for (const report::CaseResult& item : judgement.run(judgement.planned(request), threads).cases) {
    const auto found = known.find(item.variant);
    if (found == known.end() || item.verdict == Verdict::skipped) continue;
    if (item.verdict == Verdict::pass)
      found->second->passed = true;
    else
      found->second->caught_by.push_back(item.against + ": " + item.reason);
  }
}

}  // namespace

void try_on_problem(std::span<Subject> subjects, const char* problem, Judgement& judgement, int threads) {
  for (std::size_t first = 0, end; first < subjects.size(); first = end) {
    for (end = first; end < subjects.size() && subjects[end].dtype == subjects[first].dtype;) ++end;
    for (const bool under_laws : {true, false}) {
      std::vector<Subject*> some;
      for (Subject& subject : subjects.subspan(first, end - first))
        if (subject.under_laws == under_laws) some.push_back(&subject);
      try_some(some, problem, judgement, threads);
    }
  }
}

namespace {

/// Cases of a problem, with wrong kernels in the place of healthy ones.
class Replaced {
 public:
  explicit Replaced(const plan::Problem& healthy) : healthy_(healthy), problem_(healthy) {
    problem_.cases.clear(), problem_.seconds = 0;
  }

  void add(const plan::Case& item, const Subject& subject) {
    const auto [known, is_new] = answers_.try_emplace({*item.answer, &subject}, problem_.answers.size());
    if (is_new) {
      plan::Answer answer = healthy_.answers[*item.answer];
      answer.name = subject.variant.name, answer.variant = &subject.variant;
      problem_.answers.push_back(std::move(answer));
    }
    plan::Case& wrong = problem_.cases.emplace_back(item);
    wrong.answer = known->second;
    wrong.who = subject.variant.name;
    problem_.seconds += wrong.seconds;
  }

  bool is_empty() const { return problem_.cases.empty(); }
  plan::Problem taken() { return std::move(problem_); }

 private:
  const plan::Problem& healthy_;
  plan::Problem problem_;
  std::map<std::pair<std::size_t, const Subject*>, std::size_t> answers_;
};

bool is_about(const plan::Case& item, const plan::Problem& problem, plan::Reference::Kind kind) {
  return item.question == plan::Question::verdict && item.skip.empty() && item.answer &&
         item.reference.kind == kind && problem.answers[*item.answer].is_computed();
}

bool takes_the_place(const Subject& subject, const plan::Answer& answer, Pass pass) {
  return subject.is_of_suite() && subject.in_suite.empty() && subject.pass == pass &&
         subject.like == answer.variant->name && subject.dtype == answer.dtype;
}

}  // namespace

void try_on_suite(std::span<Subject> subjects, const std::string& suite, Judgement& judgement, int threads) {
  plan::Request request;
  request.targets = {suite};
  plan::Plan whole = judgement.planned(request);
  const std::vector<plan::Problem> problems = std::exchange(whole.problems, {});
  std::ranges::move(whole.failures, std::back_inserter(judgement.failures));
  whole.failures.clear();
  // A few at a time, for all threads: fewer, and they are idle; more, and much is run of what is caught.
  constexpr std::size_t at_once = 4;
  for (std::size_t first = 0; first < problems.size(); first += at_once)
    for (const auto kind : {plan::Reference::Kind::oracle, plan::Reference::Kind::law}) {
      plan::Plan part = whole;
      for (std::size_t i = first; i < std::min(problems.size(), first + at_once); ++i) {
        Replaced replaced(problems[i]);
        for (const plan::Case& item : problems[i].cases) {
          if (!is_about(item, problems[i], kind)) continue;
          const kda::Dimensions& d = problems[i].outline.dimensions;
          // The reference that wrong gradients are made of is KDA's.
          const bool is_relative = d.has_scalar_decay || d.strength != kda::Strength::head;
          for (const Subject& subject : subjects)
            if (!(is_relative && subject.pass == kda::Pass::backward) &&
                (kind == plan::Reference::Kind::oracle || subject.under_laws) &&
                takes_the_place(subject, problems[i].answers[*item.answer], item.pass))
              replaced.add(item, subject);
        }
        if (!replaced.is_empty()) part.problems.push_back(replaced.taken());
      }
      if (part.problems.empty()) continue;
      for (const report::CaseResult& item : judgement.run(part, threads).cases) {
        if (!is_alarm(item)) continue;
        const auto caught = std::ranges::find_if(subjects, [&](const Subject& subject) {
          return subject.mutant && subject.variant.name == item.variant &&
                 numeric::name_of(subject.dtype) == item.dtype && kda::name_of(subject.pass) == item.pass;
        });
        if (caught == subjects.end() || !caught->in_suite.empty()) continue;
        caught->in_suite = alarm_text(item);
        caught->tried = true;
      }
    }
  for (Subject& subject : subjects) subject.tried = true;
}

}  // namespace kda_check::selftest
