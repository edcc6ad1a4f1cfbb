// The section `stages` of a report: its columns, said once for who fills it and who reads it back.
#pragma once

#include <string>

#include "report/document.hpp"

namespace kda_check::engine {

/// Without entries: of each an answer, and in its table the stages.
report::Section stages_section(std::string path);
report::Table stages_table();

/// "stages of fla_chunk bf16, recorded". The entry has the values of the section's columns.
std::string stages_title(const report::Entry& entry);

}  // namespace kda_check::engine
