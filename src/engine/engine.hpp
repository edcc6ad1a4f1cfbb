// Runs a plan: sources side by side as far as threads and memory allow, an event for each as soon as it is
// done, in the order of the plan.
#pragma once

#include <functional>

#include "engine/context.hpp"
#include "plan/plan.hpp"
#include "report/document.hpp"

namespace kda_check::engine {

/// Told everything about one source: its problem, cases, sections and failures. By one thread at a time, in
/// the order of the plan.
using Finished = std::function<void(report::Document part)>;

/// What of the plan is done and told, for progress. How much of the rest is, the work at hand says, whose
/// seconds are those of the plan.
struct Done {
  std::size_t cases = 0, of_cases = 0;
};

struct Execution {
  Resources resources;
  std::function<void(const Done&)> done = {};  ///< told beside Finished
  std::function<bool()> enough = {};           ///< asked after each source: true, nothing more is begun
};

/// Throws Interrupted when a signal asks for the end, after everything that is done was told. What goes wrong
/// with one source, a bug too, becomes a failure of its part, and the others go on.
void execute(const plan::Plan& plan, const Execution& execution, const Finished& finished);

}  // namespace kda_check::engine
