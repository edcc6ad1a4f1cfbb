// The metrics a limit can be set on and a report prints, one row each. Smaller is better for all of them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "judge/measures/measures.hpp"

namespace kda_check::judge {

/// What must be known of a comparison besides both sides.
enum class Needs : unsigned char { nothing, magnitude, twins };

struct Metric {
  std::string_view name;
  std::string_view summary;
  Needs needs;
  /// What it may get worse by before it counts (docs/ci.md): factor times what it was, plus a step in
  /// its own unit and one in unit roundoffs of the element type.
  double factor, step, roundoffs;
  bool is_kept;  ///< new baselines have rows of it
  double (*value)(const Measures&);
  /// Where it was found; an element of no_element for sums.
  Point (*point)(const Measures&);

  bool is_known(const Measures& m) const {
    return needs == Needs::nothing || (needs == Needs::magnitude ? m.has_magnitude : m.has_twins);
  }
};

std::span<const Metric> metrics();
std::vector<std::string> metric_names();

/// Null for a name that is not in the list.
const Metric* find_metric(std::string_view name);

}  // namespace kda_check::judge
