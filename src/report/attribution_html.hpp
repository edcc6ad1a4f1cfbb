// The page of `attribute`: bars of what makes an error. For docs/reports.md.
#pragma once

#include <string>

#include "report/attribution.hpp"

namespace kda_check::report {

std::string write_attribution_html(const AttributionResult& result);

}  // namespace kda_check::report
