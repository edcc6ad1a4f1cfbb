// What `attribute` found: plain data, and its two writers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/result.hpp"

namespace kda_check::report {

/// One axis of the arithmetic. Ratios are rms(error) / rms(oracle).
struct AxisShare {
  std::string axis, value;  ///< "reduction", "mma:25"
  double only = 0;          ///< this axis as in the variant, the others ideal
  double without = 0;       ///< this axis ideal, the others as in the variant
  double share = 0;         ///< of the mean square error: (only^2 - ideal^2) / full^2
};

struct StageShare {
  std::string stage;
  double own = 0;    ///< rms_ratio of the stage given exact inputs
  double given = 0;  ///< rms_ratio of o when this stage is exact
  double share = 0;  ///< of the error of o that goes away then: 1 - (given / full)^2
};

/// One tensor of one answer against the oracle.
struct Attribution {
  std::string fixture, path, variant, dtype, compute, arithmetic, pass, tensor;
  double full = 0;         ///< rms_ratio as computed
  double ideal = 0;        ///< with every axis ideal
  double ideal_share = 0;  ///< (ideal / full)^2
  double interaction = 0;  ///< what the axes do not explain: 1 minus all shares
  std::vector<AxisShare> axes;
  std::vector<StageShare> stages;  ///< of o, in the chunk form
  std::string note;                ///< what swamps the rest
};

/// One step from one answer to another.
struct Rung {
  std::string change;         ///< "with contraction=fused"
  double remaining = 0;       ///< rms_ratio of what still differs from the goal
  std::size_t differing = 0;  ///< elements whose bits differ from the goal
  double share = 0;           ///< of the difference between the ends
};

struct Ladder {
  std::string fixture, path, from, to, pass, tensor;
  std::size_t elements = 0;
  std::vector<Rung> rungs;  ///< the first is the start, with everything remaining
};

struct AttributionResult {
  std::vector<std::string> argv;
  std::vector<FixtureResult> fixtures;
  std::vector<Attribution> attributions;
  std::vector<Ladder> ladders;
  std::vector<FailedInput> errors;

  int exit_code() const {
    int code = attributions.empty() && ladders.empty() ? 1 : 0;
    for (const FailedInput& error : errors) code = error.exit_code > code ? error.exit_code : code;
    return code;
  }
};

std::string write_attribution_text(const AttributionResult& result);
std::string write_attribution_json(const AttributionResult& result);

}  // namespace kda_check::report
