// `selftest`: can the gate fail? Wrong kernels must be caught, healthy ones must pass.
#pragma once

#include <string>
#include <vector>

#include "report/result.hpp"
#include "session/requests.hpp"

namespace kda_check::session {

struct SelftestRow {
  std::string name, what, dtype;
  bool healthy = false;
  std::vector<std::string> caught_by;  ///< "oracle: o rms_ratio 0.2 > 1e-06", one for each check that failed
  bool passed = false;                 ///< some comparison passed

  /// Wrong and caught, or healthy and let pass.
  bool as_it_should() const { return healthy ? caught_by.empty() && passed : !caught_by.empty(); }
};

struct SelftestResult {
  std::vector<std::string> argv;
  std::string target;
  std::vector<SelftestRow> rows;
  std::vector<std::pair<std::string, std::string>>
      devices;  ///< a variant, and why it cannot run here; empty: it can
  std::vector<report::FailedInput> errors;
  int exit_code() const;
};

/// Every mutant and every variant of this machine, against the oracle and under the invariants.
SelftestResult selftest(int threads, const Log& log);
std::string selftest_text(const SelftestResult& result);
std::string selftest_json(const SelftestResult& result);

}  // namespace kda_check::session
