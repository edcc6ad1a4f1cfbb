// `grow`: how the error of every answer goes along T, forwards and, of gradients, from the end.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/growth.hpp"
#include "session/requests.hpp"

namespace kda_check::session {

struct GrowRequest {
  std::vector<std::string> targets;     ///< files; directories stand for the .h5 files in them
  std::vector<std::string> variants;    ///< empty: all that can run
  std::vector<std::string> dtypes;      ///< names, or "fixture"; empty: fixture
  std::vector<std::string> arithmetic;  ///< key=value
  std::string against = "oracle";       ///< or the name of an expected group
  std::vector<std::string> tensors;     ///< those with tokens: o, dq dk dv dg dbeta; empty: o, or
  bool backward = false;                ///< all gradients with tokens
  std::optional<std::size_t> window;    ///< tokens; missing: the chunk size
  std::optional<std::size_t> chunk_size;
  kda::OraclePrecision oracle = kda::OraclePrecision::double_double;
  std::vector<compare::LimitRequest> limits;  ///< of rms_ratio, scaled_ulp, max_abs
  fixture::ReadLimits read_limits;
  int threads = 1;
};

/// Errors of o are followed from the first token; those of gradients from both ends, for the state's gradient
/// is carried from the last token to the first. Throws Error{usage} when the request names something that
/// does not exist anywhere. A file that cannot be read becomes an entry of GrowthResult::errors, and the
/// others go on.
report::GrowthResult grow(const GrowRequest& request, const Log& log);

}  // namespace kda_check::session
