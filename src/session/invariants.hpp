// `run --invariants`: what must hold of every answer whatever the inputs (docs/invariants.md), tried on a
// variant or on a program behind files.
#pragma once

#include <string>
#include <vector>

#include "analysis/invariants.hpp"
#include "session/answers.hpp"

namespace kda_check::session {

/// Thrown by a subject that gives no answer to one problem: what that means for the case, and why.
struct NoAnswer {
  compare::Verdict verdict;  ///< fail or skipped
  std::string reason;
};

analysis::Subject subject_of(const kda::Variant& variant, const kda::RunOptions& options);

/// One case for every invariant, against "invariant:<name>", with the tensors of its worst trial; without the
/// fixture's name. `reference`: the subject's answer to `problem`, o and final_state. Limits where roundings
/// may differ are those of two answers of this kind (docs/limits.md).
std::vector<report::CaseResult> invariant_cases(const kda::Problem& problem, const Answered& reference,
                                                const analysis::Subject& subject,
                                                const CompareRequest& request, const Log& log);

}  // namespace kda_check::session
