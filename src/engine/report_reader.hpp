// Reads a report of `run` as its JSON writer wrote it.
#pragma once

#include <string>

#include "report/document.hpp"

namespace kda_check::engine {

/// Throws Error{input}: no JSON, no report of `run`, one of another schema version.
report::Document read_report(const std::string& path);

}  // namespace kda_check::engine
