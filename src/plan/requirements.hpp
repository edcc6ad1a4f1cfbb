// Who must have answered for a result to count: --require, and what a user named.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/plan.hpp"

namespace kda_check::plan {

/// Names that stand for all variants of a device: "gpu".
std::span<const std::string_view> devices();

/// To be asked before anything runs. Throws Error{environment} where a device, or a variant, that is required
/// cannot run here.
void check_devices(std::span<const Requirement> required, std::span<const kda::Variant> registry);

/// To be asked of the whole plan: one failure for each requirement that no case is about, and for each answer
/// that the command line asks for by name and of which its other words leave nothing.
std::vector<report::Failure> never_asked(const Plan& plan, const Request& command);

/// What became of a case: who was to answer it, by the order of which place.
struct Turnout {
  enum class Outcome {
    answered,
    failed,  ///< whose problem, or who themselves, are failures of the run already
    skipped,
  };
  std::string who, place;
  Outcome outcome = Outcome::answered;
  std::string reason = {};  ///< of one that was skipped
};

/// To be asked when everything ran: one demand for each answer that is required, or was asked for by name on
/// the command line, and was to answer here; met where it answered some case of the plan, or failed at it.
/// What a line of a suite requires only cases of that line can meet.
std::vector<report::Demand> demands(const Plan& plan, const Request& command,
                                    std::span<const Turnout> turnouts);

}  // namespace kda_check::plan
