// The backward pass of `run`: gradients, computed or recorded, of problems that have a loss (do, dht).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kda/variants.hpp"
#include "report/result.hpp"
#include "session/answers.hpp"
#include "session/requests.hpp"
#include "session/run_plan.hpp"

namespace kda_check::session {

/// One case for each pairing of `plan`, without the fixture's name: the variants that have a backward pass
/// and can run so, `others`, and the recorded gradients of `file` (null: none that answer this problem).
std::vector<report::CaseResult> backward_cases(const kda::Problem& problem, const Source* file,
                                               const RunPlan& plan, const RunRequest& request,
                                               const std::vector<numeric::DType>& dtypes,
                                               const CompareRequest& compare, const Log& log);

}  // namespace kda_check::session
