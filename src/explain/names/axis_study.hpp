// What each axis of the arithmetic, and each stage of the chunk form, makes of an error
// (docs/attribution.md).
#pragma once

#include <string>
#include <vector>

#include "hypotheses/errors.hpp"
#include "kda/truth/stage_oracle.hpp"
#include "kda/variants/variants.hpp"

namespace kda_check::explain {

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
  std::string tensor;
  double full = 0;         ///< rms_ratio as computed
  double ideal = 0;        ///< with every axis ideal
  double ideal_share = 0;  ///< (ideal / full)^2
  double interaction = 0;  ///< what the axes do not explain: 1 minus all shares
  std::vector<AxisShare> axes;
  std::string note;  ///< what swamps the rest
};

/// What one variant makes of one problem in any arithmetic, measured against the oracle. Shares are of the
/// mean square: errors of independent causes add up in it. A GPU variant computes in its own arithmetic only;
/// in every other one `on_cpu` stands for it.
class AxisStudy {
 public:
  AxisStudy(const kda::Problem& problem, const kda::Variant& variant, const kda::Variant& on_cpu,
            kda::RunOptions options, kda::Pass pass, const hypotheses::HeldOracle& oracle);

  Attribution tensor(const std::string& name) const;

 private:
  using Errors = std::map<std::string, hypotheses::Differences>;  ///< of each tensor of the pass
  Errors errors(const kda::Arithmetic& arithmetic) const;

  const kda::Problem& problem_;
  const kda::Variant &variant_, &on_cpu_;
  const kda::RunOptions options_;
  const kda::Pass pass_;
  const hypotheses::HeldOracle& oracle_;
  kda::Arithmetic ideal_;
  Errors full_, ideal_errors_;
  std::vector<Errors> only_, without_;
};

/// Each stage's own error, and the error of o when that stage alone is exact. `full`: rms_ratio of o.
std::vector<StageShare> stage_shares(const kda::Problem& problem, const kda::Variant& variant,
                                     kda::RunOptions options, const hypotheses::HeldOracle& oracle,
                                     const kda::StageTruths& truths, double full);

}  // namespace kda_check::explain
