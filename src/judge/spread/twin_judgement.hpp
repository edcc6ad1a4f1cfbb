// What twins say of a tensor of an answer (judge/spread/twin_test.hpp).
#pragma once

#include <cstddef>
#include <string>

#include "judge/measures/regions.hpp"

namespace kda_check::judge {

/// The region where an answer is farthest beyond its twins.
struct Excess {
  Region region = Region::whole;
  std::size_t head = 0, cell = 0;
  double ratio = 0;   ///< statistic over limit; above 1 is beyond the twins
  double energy = 0;  ///< error over that of the worst twin
  double energy_limit = 0;
  double slope = 0;   ///< answer = (1 + slope) truth there, where that is most of the error; else 0
  double sigmas = 0;  ///< of the slope beyond those of the twins, where it was the slope that told
};

struct TwinJudgement {
  std::size_t twins = 0;  ///< that it was held against
  double ratio = 0;       ///< the largest of all regions
  double energy = 0;      ///< of the whole tensor: 1 errs as much as the worst twin
  bool by_slope = false;  ///< a slope is beyond its limit
  /// The least gain of the whole tensor, or the least error beside its own, in units of the truth, that the
  /// test sees.
  double floor = 0;
  /// Some region is beyond its limit, while the median row errs no more than the worst twin does, or far less
  /// than that region: no way of computing errs so, a fault does.
  bool uneven = false;
  Excess worst;       ///< what explains most, where ratio > 1
  std::string place;  ///< of that, in words
};

}  // namespace kda_check::judge
