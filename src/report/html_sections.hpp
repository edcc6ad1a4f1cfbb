// Sections in the page: tables, with bars for shares and drawings for series.
#pragma once

#include "report/html_nodes.hpp"

namespace kda_check::report::html {

void add_section(Node parent, const Section& section);

}  // namespace kda_check::report::html
