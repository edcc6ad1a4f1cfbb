// A plan as a section of a report: what --dry-run shows.
#pragma once

#include "plan/plan.hpp"
#include "report/document.hpp"

namespace kda_check::plan {

report::Section listing(const Plan& plan);
/// "plan": what the whole is, for reports of parts.
report::PlanSummary summary_of(const Plan& plan);
/// A target as a report shows it.
report::ProblemResult described(const Source& source);

}  // namespace kda_check::plan
