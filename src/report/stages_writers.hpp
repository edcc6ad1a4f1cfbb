// The writers of stages, used by the text and the JSON report.
#pragma once

#include <string>

#include "report/json_values.hpp"
#include "report/stages.hpp"

namespace kda_check::report {

std::string stages_text(const StageCase& item);
Json stages_json(const StageCase& item);

}  // namespace kda_check::report
