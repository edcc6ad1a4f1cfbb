// `selftest`: can the gate fail? Wrong kernels must be caught, healthy ones must pass.
#pragma once

#include <string>
#include <vector>

#include "report/result.hpp"
#include "session/requests.hpp"

namespace kda_check::session {

/// One line of a suite.
struct SuiteLine {
  std::string place;  ///< "ci.txt:24"
  RunRequest request;
};

struct SelftestRequest {
  int threads = 1;
  std::string suite;             ///< "@ci"
  std::vector<SuiteLine> lines;  ///< empty: the problem of the selftest alone
};

struct SelftestRow {
  std::string name, what, dtype;
  bool healthy = false;
  std::vector<std::string> caught_by;  ///< "oracle: o rms_ratio 0.2 > 1e-06", one for each check that failed
  bool passed = false;                 ///< some comparison passed
  /// The first line of the suite that catches it, "ci.txt:8 fla_fp32_small: oracle: o: ..."; of a healthy one
  /// a false alarm. Empty: none does.
  std::string in_suite;
  bool suite_counts = false;  ///< it was run over the lines of a suite

  /// Wrong and caught, by the suite as well, or healthy and let pass.
  bool as_it_should() const {
    if (healthy) return caught_by.empty() && passed && in_suite.empty();
    return !caught_by.empty() && (!suite_counts || !in_suite.empty());
  }
};

/// The variants of this machine over the whole suite.
struct SuiteRun {
  int threads = 0;
  std::size_t passed = 0, skipped = 0;
  std::vector<std::string> alarms;  ///< what did not pass

  bool as_it_should() const { return passed > 0 && alarms.empty(); }
};

struct SelftestResult {
  std::vector<std::string> argv;
  std::string target, suite;
  std::string gradient_target;  ///< of the backward pass
  std::vector<SelftestRow> rows;
  std::vector<SuiteRun> suite_runs;  ///< on one thread and on two; empty without a suite
  std::vector<std::pair<std::string, std::string>>
      devices;  ///< a variant, and why it cannot run here; empty: it can
  std::vector<report::FailedInput> errors;
  int exit_code() const;
};

/// Every mutant and every variant of this machine: against the oracle and under the invariants on one
/// problem (those of the backward pass against the oracle), then over the lines of the suite - mutants up to
/// the first that catches them, variants over all.
SelftestResult selftest(const SelftestRequest& request, const Log& log);
std::string selftest_text(const SelftestResult& result);
std::string selftest_json(const SelftestResult& result);

}  // namespace kda_check::session
