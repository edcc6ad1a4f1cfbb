// From a finished comparison to the plain data of a report.
#pragma once

#include <string>

#include "compare/comparison.hpp"
#include "compare/limits.hpp"
#include "report/result.hpp"
#include "session/requests.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::session {

/// Judges `measures` of the tensor `got` by `limits`, overridden by what the user asked for, and describes
/// the result.
report::TensorResult judged(const std::string& name, const tensor::Tensor& got, bool state_v_first,
                            const compare::Measures& measures, std::vector<compare::Limit> limits,
                            const JudgingRequest& request, const compare::JudgeOptions& options = {});

/// The same of a tensor that is not in memory.
report::TensorResult judged(const std::string& name, const tensor::Shape& shape, numeric::DType dtype,
                            bool state_v_first, const compare::Measures& measures,
                            std::vector<compare::Limit> limits, const JudgingRequest& request,
                            const compare::JudgeOptions& options = {});

compare::ComparisonOptions comparison_options(const JudgingRequest& request, int threads);

/// The limit that --atol and --rtol ask for, or none.
std::vector<compare::LimitRequest> all_limit_requests(const JudgingRequest& request);

/// The verdict and the reason of a case from those of its tensors.
void conclude(report::CaseResult& result);

}  // namespace kda_check::session
