// What is not worth a try on the whole cut, because it explains too little of a small one.
#pragma once

#include <deque>
#include <vector>

#include "hypotheses/scores.hpp"

namespace kda_check::hypotheses {

class Screen {
 public:
  /// `small`, which must stay, the smallest first. Without any everything is worth a try.
  Screen(const std::vector<Cut>& small, int threads, Effort& effort);

  /// The steps from `now` that do not lose on the smallest cut; `others` gets those that do.
  std::vector<Hypothesis> steps(const Hypothesis& now, std::vector<Hypothesis> list,
                                std::vector<Hypothesis>* others = nullptr);
  /// The steps that lose on none.
  std::vector<Hypothesis> ties(const Hypothesis& now, std::vector<Hypothesis> list);
  /// The starts that come near the best of them; not too many.
  std::vector<Hypothesis> starts(std::vector<Hypothesis> list);

 private:
  std::deque<Scores> scores_{};
};

}  // namespace kda_check::hypotheses
