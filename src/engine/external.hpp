// A kernel of somebody else as a program that reads a fixture and writes a fixture (docs/file-format.md).
#pragma once

#include "engine/answered.hpp"
#include "explain/invariants/invariants.hpp"
#include "plan/plan.hpp"

namespace kda_check::engine {

/// What the program answers to a problem in one pass, named after it: o and final_state, or gradients, for
/// which {in} has the loss; all of them or some. Outputs it finds in {out} hold `fill` (whatever: NaN). Files
/// are temporary and gone afterwards, also when a signal ends the process. Throws NoAnswer for an answer that
/// is missing or malformed, a program that failed, crashed or took too long; skipped for exit status 77.
/// Throws Error{environment} for one that cannot be run.
Answered external_answer(const plan::ExternalProgram& program, const kda::Problem& problem, kda::Pass pass,
                         const fixture::ReadLimits& limits, explain::Fill fill = explain::Fill::whatever);

/// Throws NoAnswer, skipped, for an answer that lacks any tensor of its pass.
void check_complete(const Answered& answer, const kda::Problem& problem);

/// To be tried under the laws.
explain::Subject external_subject(const plan::ExternalProgram& program, const kda::Problem& problem,
                                  kda::Pass pass, const fixture::ReadLimits& limits);

}  // namespace kda_check::engine
