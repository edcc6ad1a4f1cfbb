// `merge`: the reports of the shards of one run, joined.
#pragma once

#include <string>
#include <vector>

#include "report/document.hpp"

namespace kda_check::engine {

/// The document of the whole: every case exactly once, in the order of the plan. Throws Error{usage} for
/// fewer than one file, Error{input} for reports that are not shards of one plan, a shard twice or missing, a
/// case twice or missing - unless the report of its shard says that it was interrupted or could not read
/// something. What was demanded and met in no part is a failure of it.
report::Document merged(const std::vector<std::string>& paths);

}  // namespace kda_check::engine
