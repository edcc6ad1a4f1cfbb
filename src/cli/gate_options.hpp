// Options of run that hold it to files: --tolerance, --baseline, --update-baseline.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compare/tolerances.hpp"
#include "report/result.hpp"
#include "session/baseline_gate.hpp"

namespace kda_check::cli {

struct GateOptions {
  std::string tolerance_path;  ///< empty: none
  std::string baseline_path;   ///< empty: none
  std::string update;          ///< "", "better", "worse"

  bool has_baseline() const { return !baseline_path.empty() || !update.empty(); }
};
void add_gate_options(CLI::App& app, GateOptions& options);

/// The files of tolerances of one run, each read once: whether a rule was used is known at the end.
class TolerancesRead {
 public:
  /// Null for an empty path. Throws what Tolerances::read throws.
  std::shared_ptr<compare::Tolerances> read(const std::string& path);
  /// One error (exit code 1) for each rule that was for nothing.
  void add_unused(std::vector<report::FailedInput>& errors) const;

 private:
  std::map<std::string, std::shared_ptr<compare::Tolerances>> files_;
};

/// Nullopt without --baseline. The file becomes one of `inputs`: no report may go there. Throws Error{usage}
/// for an update of no file, and what BaselineGate throws.
std::optional<session::BaselineGate> baseline_gate(const GateOptions& options, bool narrowed,
                                                   std::vector<std::string>& inputs);

/// On standard error, with the name of the program before each.
void print_lines(const std::vector<std::string>& lines);

}  // namespace kda_check::cli
