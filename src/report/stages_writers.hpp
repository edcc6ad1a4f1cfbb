// The writers of stages, used by the reports. Stages have no verdict: they tell where an error is born.
#pragma once

#include <string>

#include "report/json_values.hpp"
#include "report/stages.hpp"

namespace kda_check::report {

std::string stages_text(const StageCase& item);
Json stages_json(const StageCase& item);
std::string stages_html(const StageCase& item);
std::string stages_markdown(const StageCase& item);
/// "leaves the truth first at Aqk, chunk 3 ..." or that no stage does.
std::string divergence_text(const StageCase& item);
/// "chunk fp32/tf32, recorded"
std::string answer_text(const StageCase& item);

}  // namespace kda_check::report
