// `grow`: how the error of every answer goes along T.
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
  std::string tensor = "o";             ///< the only one with tokens
  std::optional<std::size_t> window;    ///< tokens; missing: the chunk size
  std::optional<std::size_t> chunk_size;
  kda::OraclePrecision oracle = kda::OraclePrecision::double_double;
  std::vector<compare::LimitRequest> limits;  ///< of rms_ratio, scaled_ulp, max_abs
  fixture::ReadLimits read_limits;
  int threads = 1;
};

/// Throws Error{usage} when the request names something that does not exist anywhere. A file that cannot be
/// read becomes an entry of GrowthResult::errors, and the others go on.
report::GrowthResult grow(const GrowRequest& request, const Log& log);

}  // namespace kda_check::session
