// From one computation on, setting by setting: each time the one that leaves the least.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "hypotheses/hypothesis.hpp"

namespace kda_check::hypotheses {

/// One setting of a computation, and the computation with another in its place.
struct Change {
  std::string before, after;
  Hypothesis hypothesis;
};
/// Those to settings of `to` that are possible.
std::vector<Change> changes(const Hypothesis& from, const Hypothesis& to, const kda::Problem& problem);

/// `left`: of each of `candidates(now)`. Ends where there are none, or where `take(change, left)`, told of
/// the best, says no.
template <class Candidates, class Left, class Take>
void walk(Hypothesis now, const Candidates& candidates, const Left& left, const Take& take) {
  constexpr std::size_t most_steps = 100;  // there are fewer settings
  for (std::size_t step = 0; step < most_steps; ++step) {
    std::vector<Change> list = candidates(now);
    const std::vector<double> lefts = left(std::as_const(list));
    const auto best = std::ranges::min_element(
        lefts, [](double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); });
    if (best == lefts.end()) return;
    Change& change = list[static_cast<std::size_t>(best - lefts.begin())];
    if (!take(std::as_const(change), *best)) return;
    now = std::move(change.hypothesis);
  }
}

}  // namespace kda_check::hypotheses
