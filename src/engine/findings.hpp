// What the cases of one problem come to.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/context.hpp"
#include "report/document.hpp"

namespace kda_check::engine {

/// Results of verdicts by the place of their case in the problem; those of other questions are empty.
struct Findings {
  std::vector<report::CaseResult> cases;
  std::vector<report::Section> sections;
  std::vector<std::string> notes;
};

/// The result of a case before anything is known but who was asked: skipped, with the reason of the plan.
report::CaseResult begun(const plan::Case& item, const plan::Problem& problem);

/// With what was done to the inputs before.
std::string with_remark(std::string arithmetic, const plan::Problem& problem);

/// Without entries, of a problem's file.
inline report::Section section_of(const Context& context, std::string key) {
  report::Section section;
  section.key = std::move(key), section.path = context.plan().source->target().name;
  return section;
}

/// Runs work(section). What was finished of the section is among the findings, however the work ends.
template <class Work>
void keep_finished(Findings& findings, report::Section section, Work work) {
  const auto keep = [&] {
    if (!section.entries.empty()) findings.sections.push_back(std::move(section));
  };
  try {
    work(section);
  } catch (...) {
    keep();
    throw;
  }
  keep();
}

// One file each. They take the cases of their questions.

/// Every verdict against the oracle, recorded answers and replays.
void judge_verdicts(Context& context, Findings& findings);
/// Every verdict under a law.
void judge_laws(Context& context, Findings& findings);
void compare_stages(Context& context, Findings& findings);
void measure_power(Context& context, Findings& findings);
void identify_outputs(Context& context, Findings& findings);
void follow_growth(Context& context, Findings& findings);
void forecast_runs(Context& context, Findings& findings);
void find_faults(Context& context, Findings& findings);
/// Throws Error{environment} where the file cannot be written.
void capture_answers(Context& context, Findings& findings);

}  // namespace kda_check::engine
