// `run --baseline`: fails what got worse than the file says, and rewrites the file when asked.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/output_file.hpp"
#include "judge/baseline.hpp"
#include "report/document.hpp"

namespace kda_check::engine {

struct BaselineRequest {
  std::string path;
  std::optional<judge::Ratchet> update;  ///< nullopt: the file stays as it is
};

/// What a run looks at of what its targets hold; rows about the rest mean nothing.
enum class BaselineScope : unsigned char { everything, some_comparisons, some_tensors };

class BaselineCheck {
 public:
  /// Reads the file before anything runs; with an update one that does not exist is empty. Throws
  /// Error{input} for one that cannot be read or is malformed, Error{environment} for one that could not be
  /// replaced.
  explicit BaselineCheck(BaselineRequest request);

  /// Of the cases of one source: fails the tensors that got worse, with the numbers as the reason.
  void judge(std::span<report::CaseResult> cases) const;

  /// What else is to be said of the whole, a line each: rows that are loose, stale or new. Adds failures to
  /// the document: no row was measured - of a part that is a demand, for the rows may be about other parts; a
  /// recorded answer, or that of a program, that has rows is no longer there, or a tensor of it.
  std::vector<std::string> findings(report::Document& document, BaselineScope scope,
                                    std::vector<report::Demand>& demands);

  /// Writes the file, whole or not at all, and returns the rows that changed, before and after, the
  /// conclusion first. Without an update nothing; where something failed to be read, or the run was
  /// interrupted, the file stays, and a line says so. Throws Error{environment}, also where another process
  /// wrote the file meanwhile.
  std::vector<std::string> update(const report::Document& document, BaselineScope scope);

 private:
  BaselineRequest request_;
  std::optional<OutputFile> file_;
  judge::Baseline baseline_;
  judge::Readings readings_;
};

}  // namespace kda_check::engine
