// What a run found: plain data. Sessions fill it, writers print it, nothing here computes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compare/limits.hpp"
#include "compare/verdict.hpp"
#include "report/profile.hpp"
#include "report/stages.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::report {

/// One element, ready to print.
struct PointResult {
  std::vector<std::size_t> index;
  std::string place;  ///< "o[b=0 t=412 h=3 v=17]"
  double got = 0, expected = 0, magnitude = 0;
  std::string got_hex, expected_hex;
  double rank = 0;  ///< scaled_ulp where there is a magnitude, else steps
};

struct TensorResult {
  std::string name;
  tensor::Shape shape;
  std::string dtype;
  compare::Verdict verdict = compare::Verdict::inconclusive;
  std::string reason;
  std::vector<std::pair<std::string, double>>
      metrics;  ///< in the order of compare::metrics(), those that apply
  std::vector<compare::Limit> limits;
  std::optional<PointResult> worst;     ///< of the metric that decided, else of scaled_ulp or max_ulp
  std::vector<PointResult> points;      ///< the worst points
  std::string worst_window;             ///< "b=0 t=408..415", empty without tokens
  std::string worst_head;               ///< "h=3", empty without heads
  std::optional<ErrorProfile> profile;  ///< when a report draws it
};

/// A convention under which a failing answer would be right, or the nearest to that.
struct ProbeMatch {
  std::string convention, meaning;
  std::string tensor;  ///< the one that deviates most as given; the ratios are its
  double rms_ratio_before = 0, rms_ratio_after = 0;
};

/// What --probe found out about a failing case.
struct ProbeResult {
  std::vector<ProbeMatch> matches;    ///< more than one when this answer cannot tell them apart
  std::optional<ProbeMatch> nearest;  ///< without a match: the convention that comes closest
  std::size_t conventions = 0;        ///< tried
  std::string scope;                  ///< "b=0 t=0..129 h=0,1 v=0..31"
};

struct CaseResult {
  std::string fixture;    ///< name of the fixture
  std::string path;       ///< as given on the command line
  std::string variant;    ///< row of the variant list, or the expected group that was judged
  bool recorded = false;  ///< the answer came from the file, nothing was run
  std::string dtype, device, pass, arithmetic, compute, against;
  compare::Verdict verdict = compare::Verdict::inconclusive;
  std::string reason;
  std::string trials;  ///< of an invariant: what was tried, "1 63 64* 100"
  std::vector<TensorResult> tensors;
  std::optional<ProbeResult> probe;  ///< of a failing case, when asked for
};

struct FixtureResult {
  std::string name, path;
  std::string shape;               ///< "B=1 T=64 H=1 K=64 V=64"
  std::string options;             ///< "fp32 gate=none initial_state"
  std::vector<std::string> notes;  ///< what was not compared, and why
};

struct FailedInput {
  std::string message;
  int exit_code;
};

struct Result {
  std::string command;            ///< "run" or "diff"
  std::vector<std::string> argv;  ///< the words after kda-check
  std::string oracle;             ///< "double-double", "fp64", "none"
  std::vector<FixtureResult> fixtures;
  std::vector<CaseResult> cases;
  std::vector<StageCase> stages;  ///< with --stages
  std::vector<FailedInput> errors;
  std::string nothing_to_do;  ///< why there was nothing to run and that is no failure: an empty shard

  std::size_t count(compare::Verdict verdict) const {
    std::size_t total = 0;
    for (const CaseResult& item : cases) total += item.verdict == verdict;
    return total;
  }
  /// Variants were to run and none did: what recorded answers pass says nothing about them.
  bool no_variant_ran() const {
    bool left_out = false;
    for (const CaseResult& item : cases) {
      if (item.recorded) continue;
      if (item.verdict != compare::Verdict::skipped) return false;
      left_out = left_out || item.against.empty();
    }
    return left_out;
  }
  /// 0 all passed, or nothing was to be done; 1 something failed, was inconclusive, nothing passed at all or
  /// no variant ran; else that of the worst error.
  int exit_code() const {
    const bool clean =
        count(compare::Verdict::fail) == 0 && count(compare::Verdict::inconclusive) == 0 && !no_variant_ran();
    const bool idle = cases.empty() && !nothing_to_do.empty();
    int code = clean && (count(compare::Verdict::pass) > 0 || idle) ? 0 : 1;
    for (const FailedInput& error : errors) code = error.exit_code > code ? error.exit_code : code;
    return code;
  }
};

}  // namespace kda_check::report
