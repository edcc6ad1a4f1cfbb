// Sections as text.
#pragma once

#include <string>

#include "report/writers.hpp"

namespace kda_check::report {

/// One table for a tabular section; else each entry as a paragraph: its title, its verdict, its tables and
/// its sentences. Quiet: what has a verdict and did not pass.
std::string section_text(const Section& section, const WriteOptions& options);

}  // namespace kda_check::report
