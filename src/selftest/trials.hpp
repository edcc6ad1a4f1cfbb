// Kernels on trial, and the judgement they are put through: that of the command `run`.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "selftest/mutants.hpp"
#include "selftest/selftest.hpp"

namespace kda_check::selftest {

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
