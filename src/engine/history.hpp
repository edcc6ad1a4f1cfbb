// `history`: the reports of several commits, number by number.
#pragma once

#include <string>
#include <vector>

#include "report/document.hpp"

namespace kda_check::engine {

struct HistoryRequest {
  std::vector<std::string> paths;  ///< JSON of `run`, oldest first
  bool all = false;                ///< rows that did not change too
};

/// A section with a row for each number that changed, what is worse first; it fails when the last report is
/// worse than the first somewhere - beyond the slack of a baseline, gone, or a verdict that was pass - or has
/// nothing in common with it. Throws Error{usage} for fewer than two files, Error{input} for one that is no
/// report of `run`.
report::Document history(const HistoryRequest& request);

}  // namespace kda_check::engine
