// A kernel of somebody else as a program that reads a fixture and writes a fixture (docs/external.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/invariants.hpp"
#include "session/answers.hpp"
#include "session/invariants.hpp"
#include "session/requests.hpp"

namespace kda_check::session {

/// Throws Error{usage}: {in} or {out} missing, a name that means something else.
void check_external(const ExternalProgram& program);

/// Runs the program once for every problem it is given. Files are temporary and gone afterwards, also when a
/// signal ends the process.
class External {
 public:
  External(const ExternalProgram& program, const fixture::ReadLimits& limits,
           std::vector<std::string> tensors)
      : program_(program), limits_(limits), tensors_(std::move(tensors)) {}

  /// What it answers: the tensors asked for, named after the program. Outputs it finds in {out} hold `fill`
  /// (whatever: NaN). Throws NoAnswer for an answer that is missing or malformed, a program that failed,
  /// crashed or took too long; skipped for exit status 77. Throws Error{environment} for one that cannot be
  /// run.
  Answered answer(const kda::Problem& problem, analysis::Fill fill = analysis::Fill::whatever) const;

  analysis::Subject subject(const kda::Problem& problem) const;

 private:
  /// `inputs_after`, unless null: the inputs in {in} when the program has ended.
  Answered run(const kda::Problem& problem, analysis::Fill fill,
               std::optional<kda::Problem>* inputs_after) const;

  const ExternalProgram& program_;
  const fixture::ReadLimits& limits_;
  std::vector<std::string> tensors_;
};

}  // namespace kda_check::session
