// `run --baseline`: fails what got worse than the file says, and rewrites the file when asked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/baseline.hpp"
#include "base/replacement.hpp"
#include "report/result.hpp"

namespace kda_check::session {

struct BaselineRequest {
  std::string path;
  std::optional<analysis::Ratchet> update;  ///< nullopt: the file stays as it is
  /// The command line selects among what its targets hold: rows without a comparison mean nothing.
  bool narrowed = false;
};

class BaselineGate {
 public:
  /// Reads the file before anything runs; with an update one that does not exist is empty. Throws
  /// Error{input} for one that cannot be read or is malformed, Error{environment} for one that could not be
  /// replaced.
  explicit BaselineGate(BaselineRequest request);

  /// Fails the tensors that got worse, with the numbers as the reason, and returns what else is to be said, a
  /// line each: rows that are loose, stale or new. Adds an error to the result when no row was measured.
  std::vector<std::string> judge(report::Result& result);

  /// Writes the file, whole or not at all, and returns the rows that changed, before and after. Without an
  /// update nothing; where an input could not be read the file stays, and a line says so. Throws
  /// Error{environment}.
  std::vector<std::string> update(const report::Result& result);

 private:
  BaselineRequest request_;
  std::optional<Replacement> replacement_;
  analysis::Baseline baseline_;
  analysis::Readings readings_;
};

}  // namespace kda_check::session
