// Drawings of one tensor's error as inline SVG: no scripts, no fonts of their own, colours by the classes of
// the page (html_style.hpp). Every drawing has a title in words; texts inside hold only numbers and fixed
// words.
#pragma once

#include <string>

#include "report/profile.hpp"

namespace kda_check::report {

/// rms_ratio along T on a logarithmic scale; windows without an error are gaps, those that are not finite
/// crosses on the upper edge. `limit`: that of rms_ratio, as a dashed line; 0: none. Empty without tokens.
std::string growth_drawing(const ErrorProfile& profile, double limit);

/// Elements by distance in representable steps, both scales by powers. Empty when no element is finite.
std::string histogram_drawing(const ErrorProfile& profile);

/// rms_ratio by heads and windows of tokens in seven shades, logarithmic. Empty without tokens, and for one
/// head: the growth shows it.
std::string heat_drawing(const ErrorProfile& profile);

}  // namespace kda_check::report
