// What the pages have in common: a head with the style, a foot.
#pragma once

#include <string>

#include "report/result.hpp"

namespace kda_check::report {

/// Up to and with <body>; `title` is fit for XML.
std::string page_begin(const std::string& title);
/// From the footer on; `about` is fit for XML: "oracle: double-double".
std::string page_end(const std::string& about);
/// The list of what could not be read or run; empty without any.
std::string errors_html(const std::vector<FailedInput>& errors);

}  // namespace kda_check::report
