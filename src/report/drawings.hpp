// Drawings of one tensor's error as inline SVG: no scripts, no fonts of their own, colours by the classes of
// the page (html_style.hpp). Every drawing has a title in words; texts inside hold only numbers and fixed
// words.
#pragma once

#include <string>
#include <vector>

#include "report/profile.hpp"

namespace kda_check::report {

/// rms_ratio along T on a logarithmic scale; windows without an error are gaps, those that are not finite
/// crosses on the upper edge. `limit`: that of rms_ratio, as a dashed line; 0: none. Empty without tokens.
std::string growth_drawing(const ErrorProfile& profile, double limit);

/// Elements by distance in representable steps, both scales by powers. Empty when no element is finite.
std::string histogram_drawing(const ErrorProfile& profile);

/// An error by heads and tokens in seven shades, logarithmic. Empty without tokens.
std::string heat_drawing(const ErrorMap& map);

/// A small line of values along something, on a logarithmic scale, as growth_drawing draws windows. Empty
/// without values.
std::string series_drawing(const std::vector<double>& values);

/// A bar for a share of an error; its name is fit for XML.
struct ShareBar {
  std::string name;
  double share = 0;  ///< 1 is the whole; below 0: an error that cancels another; NaN: no bar
};
/// One bar below the other on one scale, from 0, or the least share, to the whole or the largest. Empty
/// without bars.
std::string shares_drawing(const std::string& title, const std::vector<ShareBar>& bars);

/// A dot with a name, fit for XML.
struct NamedDot {
  std::string name;
  double along = 0, over = 0;
};
/// Both axes logarithmic; what is not positive is left out. Empty without dots.
std::string scatter_drawing(const std::string& along, const std::string& over,
                            const std::vector<NamedDot>& dots);

}  // namespace kda_check::report
