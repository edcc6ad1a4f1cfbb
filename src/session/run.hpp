// `run`: variants on fixtures, compared with the oracle and with the answers the files hold.
#pragma once

#include "report/result.hpp"
#include "session/requests.hpp"

namespace kda_check::session {

/// Throws Error{usage} when the request names something that does not exist anywhere. A file that cannot be
/// read becomes an entry of Result::errors, and the others go on.
report::Result run(const RunRequest& request, const Log& log);

}  // namespace kda_check::session
