// `selftest`: can the gate fail? Wrong kernels must be caught, healthy ones must pass (docs/developing.md).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/context.hpp"
#include "plan/planner.hpp"
#include "report/document.hpp"

namespace kda_check::selftest {

struct SelftestRequest {
  engine::Resources resources;
  std::string suite;        ///< "@ci"; empty: the problems of the selftest alone
  bool production = false;  ///< forward kernels alone, on a problem of the shape of production; no suite
  std::vector<std::string> mutants = {};  ///< these alone beside the healthy ones; empty: all
  bool variants_over_suite = true;        ///< also every variant of this machine over all of the suite
  std::function<plan::Request(const plan::Words&)> parse_line;
};

/// Every mutant and every variant of this machine: against the oracle and under the invariants on one problem
/// (those of the backward pass against the oracle), then over the suite - mutants up to the first line that
/// catches them, variants over all, on one thread and on two. A row for each, which fails where a mutant is
/// missed or a healthy kernel is not let pass. The document, empty at first, is filled at the end, also when
/// Interrupted is thrown: with rows of those whose trials were over. Throws Error{usage} for a mutant that is
/// not known.
void selftest(const SelftestRequest& request, report::Document& document);

}  // namespace kda_check::selftest
