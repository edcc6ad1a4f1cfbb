// `history`: the reports of several commits, number by number.
#pragma once

#include <string>
#include <vector>

namespace kda_check::session {

struct HistoryRequest {
  std::vector<std::string> paths;  ///< JSON of `run`, oldest first
  bool all = false;                ///< rows that did not change too
};

struct HistoryRow {
  std::string fixture, variant, dtype, against, tensor, metric;
  std::vector<std::string> values;  ///< one for each file; "-" where it has none
  std::string change;               ///< first to last: "", "worse", "better", "new", "gone"
  bool worse = false;               ///< beyond the slack of a baseline, gone, or a verdict that was pass
};

struct HistoryResult {
  std::vector<std::string> paths;
  std::vector<HistoryRow> rows;
  std::size_t compared = 0;  ///< numbers in the first and in the last
  std::size_t worse = 0;     ///< rows

  /// 1 when the last is worse than the first somewhere, or has nothing in common with it.
  int exit_code() const { return worse > 0 || compared == 0 ? 1 : 0; }
};

/// Throws Error{usage} for fewer than two files, Error{input} for one that is no report of `run`.
HistoryResult history(const HistoryRequest& request);

std::string history_text(const HistoryResult& result);

}  // namespace kda_check::session
