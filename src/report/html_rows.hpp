// The part of the page about one row: figures, limits, points and drawings.
#pragma once

#include <cstddef>

#include "report/html_nodes.hpp"
#include "report/rows.hpp"

namespace kda_check::report::html {

/// A folded block, open for what did not pass; its anchor is r<number>.
void add_row_details(Node parent, const Document& document, const Row& row, std::size_t number);

}  // namespace kda_check::report::html
