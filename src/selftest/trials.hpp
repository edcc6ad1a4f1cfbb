// Kernels on trial, and the judgement they are put through: that of the command `run`.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "selftest/selftest.hpp"

namespace kda_check::selftest {

/// A kernel on trial, and what was found about it.
struct Subject {
  kda::Variant variant;        ///< under a name of its own among those of its dtype and pass
  std::string_view name;       ///< what reports call it
  std::string size = {};       ///< of what is wrong; may be empty
  std::string_view like = {};  ///< the variant whose limits are its own
  numeric::DType dtype = numeric::DType::fp32;
  bool healthy = true, mutant = false;
  bool may_hide = false;    ///< so small that a single problem need not show it
  bool under_laws = false;  ///< tried under the invariants, too
  kda::Pass pass = kda::Pass::forward;

  std::vector<std::string> caught_by =
      {};                     ///< "oracle: o rms_ratio 0.2 > 1e-06", one for each check that failed
  bool passed = false;        ///< some comparison passed
  std::string in_suite = {};  ///< the first line of the suite that catches it
  bool tried = false;         ///< on everything it is to be tried on

  /// "passes", "false alarm"; "caught", by the suite as well; "missed"; "not seen" on one problem, which need
  /// not show it.
  std::string_view finding(bool with_suite) const {
    const bool by_suite = with_suite && mutant;
    if (healthy)
      return caught_by.empty() && passed && (!by_suite || in_suite.empty()) ? "passes" : "false alarm";
    const bool shows = !caught_by.empty();
    if (by_suite) return !in_suite.empty() && (shows || may_hide) ? "caught" : "missed";
    return shows ? "caught" : may_hide ? "not seen" : "missed";
  }
};

bool is_alarm(const report::CaseResult& item);
/// "@ci:8 cases/fixtures/fla_fp32_small.h5: oracle: o: rms_ratio 0.2 > 1e-06"
std::string alarm_text(const report::CaseResult& item);

/// Plans and runs requests as the command `run` does.
class Judgement {
 public:
  explicit Judgement(const SelftestRequest& request) : request_(request) {}

  plan::Plan planned(const plan::Request& words) const;
  report::Document run(const plan::Plan& plan, int threads);

  std::vector<report::Failure> failures;

 private:
  const SelftestRequest& request_;
};

/// Each against the oracle on a problem, those of one dtype together. They stand in the order of dtypes, and
/// have the same pass.
void try_on_problem(std::span<Subject> subjects, const char* problem, Judgement& judgement, int threads);

/// The mutants over a suite, each up to the first case that catches it: cases that `run` has of the variants
/// they are like, against the oracle and under invariants, with the wrong kernel in the variant's place.
/// Cases against recorded bits are left out: whoever wrote a kernel is not asked for those of ours. All
/// mutants share what is computed of a problem.
void try_on_suite(std::span<Subject> subjects, const std::string& suite, Judgement& judgement, int threads);

}  // namespace kda_check::selftest
