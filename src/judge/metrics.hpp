// The metrics a limit can be set on and a report prints, one row each. Smaller is better for all of them.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "judge/measures.hpp"

namespace kda_check::judge {

struct Metric {
  std::string_view name;
  std::string_view summary;
  bool needs_magnitude;
  double (*value)(const Measures&);
  /// Where it was found; an element of no_element for sums.
  Point (*point)(const Measures&);
};

std::span<const Metric> metrics();

/// Null for a name that is not in the list.
const Metric* find_metric(std::string_view name);

}  // namespace kda_check::judge
