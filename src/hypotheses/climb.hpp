// From one computation to better ones, setting by setting.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hypotheses/screen.hpp"

namespace kda_check::hypotheses {

using Progress = std::function<void(const std::string&)>;

class Climb {
 public:
  /// Of one cut; `screen`: of steps on it.
  Climb(Scores& scores, Screen& screen, const Progress& progress)
      : scores_(scores), screen_(screen), progress_(progress) {}

  /// Single settings as long as one gains, then pairs.
  Scored from(Scored now);

 private:
  /// One setting that gains. What gained most before is tried first: a step changes what others gain, but
  /// mostly not much.
  bool single(Scored& now);
  /// Two settings that gain together: of the best single ones; of one that changes nothing alone and what may
  /// bring it to bear.
  bool pairs(Scored& now);
  bool take_best(Scored& now, const std::vector<Hypothesis>& list, double gain);

  Scores& scores_;
  Screen& screen_;
  const Progress& progress_;
  std::map<std::string, double> gains_{};  ///< of steps, when they were tried last
  std::vector<Scored> steps_{};            ///< from the computation that was last
};

}  // namespace kda_check::hypotheses
