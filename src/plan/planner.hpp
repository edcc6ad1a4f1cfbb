// From a request to its plan: suites are opened, targets expanded and looked at, everything is checked. What
// is wrong with the words comes out here, before anything runs.
#pragma once

#include <functional>
#include <string>

#include "plan/plan.hpp"
#include "plan/words.hpp"

namespace kda_check::plan {

struct Planning {
  Shard shard;
  fixture::ReadLimits limits;
  /// The request of a line of a suite: its words as those of the command line. Throws Error{usage, input} for
  /// words that a line cannot have.
  std::function<Request(const Words&)> parse_line;
};

/// Throws Error{usage}; Error{input} for a suite or tolerances that cannot be read; Error{environment} for a
/// requirement that this machine does not meet. A target that cannot be read is a failure of the plan.
Plan planned(const Request& command, const Planning& planning);

}  // namespace kda_check::plan
