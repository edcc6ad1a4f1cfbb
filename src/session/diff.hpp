// `diff`: the tensors of two files, or of two expected groups. Nothing is run.
#pragma once

#include <string>

#include "report/result.hpp"
#include "session/requests.hpp"

namespace kda_check::session {

struct DiffRequest {
  std::string got, expected;  ///< FILE or FILE:GROUP
  JudgingRequest judging;
  fixture::ReadLimits limits;
  int threads = 1;
};

/// Without limits of the user's every difference fails. Throws Error{input, usage}.
report::Result diff(const DiffRequest& request, const Log& log);

}  // namespace kda_check::session
