// Who must have answered for a result to count: --require, and what a user named.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "plan/plan.hpp"

namespace kda_check::plan {

/// Names that stand for all variants of a device: "gpu".
std::span<const std::string_view> devices();

/// To be asked before anything runs. Throws Error{environment} where a device, or a variant, that is required
/// cannot run here.
void check_devices(const Names& required, std::span<const kda::Variant> registry);

/// To be asked of the whole plan: one failure for each name that is required and that no case is about.
std::vector<report::Failure> never_asked(const Plan& plan);

/// Who answered something, and why the others did not.
struct Answerers {
  std::set<std::string> answered;
  std::set<std::string> failed;  ///< whose problem, or who themselves, are failures of the run already
  std::map<std::string, std::string> skipped = {};  ///< a reason for each that was skipped somewhere
};

/// To be asked when everything ran: one failure for each answer that is required, or was asked for by name on
/// the command line, was to answer and gave no answer in any case of the plan.
std::vector<report::Failure> missing_answers(const Plan& plan, const Request& command,
                                             const Answerers& answerers);

}  // namespace kda_check::plan
