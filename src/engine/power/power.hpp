// The power of the gate on a problem: how large a fault must be before an answer with it is beyond its twins,
// and before it breaks a derived limit (docs/verdicts.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/power/answers.hpp"
#include "judge/limits.hpp"
#include "kda/bounds/gate_statistics.hpp"

namespace kda_check::engine {

/// A fault in one place, and the least share of it that is seen.
struct PlacePower {
  const FaultRow* row;
  std::string place;
  std::optional<double> by_twins = {};   ///< none: not seen, however large; or there are no twins
  std::optional<double> by_limits = {};  ///< none: not seen, however large
  /// By either, where twins excuse single elements up to the margin.
  std::optional<double> by_both = {};
  std::string named = {};  ///< where three times the least is found, or the fault itself
  bool is_named = false;   ///< that is where it is
};

struct Power {
  std::size_t twins = 0;          ///< 0: fewer than three that are fit
  bool is_finite = true;          ///< the truth and the healthy answer; else no more is known
  std::optional<double> healthy;  ///< statistic over limit of the healthy answer; none without twins
  double healthy_rms_ratio = 0, healthy_scaled_ulp = 0;
  std::vector<judge::Limit> limits;  ///< derived
  std::vector<PlacePower> faults;    ///< one for each; none where it is not finite
};

/// `faults`: on the answers.
Power power_of(const kda::Problem& problem, const PowerAnswers& answers, const std::vector<Fault>& faults,
               const kda::GateStatistics& gates, std::size_t memory_budget);

}  // namespace kda_check::engine
