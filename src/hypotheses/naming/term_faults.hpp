// What can be wrong with a term of a sum, in words; rows of the table of faults that are about the terms of
// the chunk form.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hypotheses/naming/faults.hpp"

namespace kda_check::hypotheses {

/// Of a row's name: "lost".
std::string_view name_of(TermFault fault);
/// "Aqk", lost: "Aqk is missing".
std::string with_fault(std::string_view term, TermFault fault);

std::vector<Fault> term_faults();

}  // namespace kda_check::hypotheses
