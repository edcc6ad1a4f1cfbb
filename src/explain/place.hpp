// Where in a problem a forecast speaks of.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

namespace kda_check::explain {

/// One element of a factor: token `row` of chunk `chunk` of a sequence, channel of the key dimension.
struct Place {
  std::size_t sequence = 0, batch = 0, head = 0, chunk = 0, row = 0, channel = 0;
  bool operator==(const Place&) const = default;
};

/// The largest of what was noted, and where that first was. NaN counts as infinite.
struct Peak {
  double value = 0;
  Place place;

  void note(double size, const Place& at) {
    if (std::isnan(size)) size = std::numeric_limits<double>::infinity();
    if (size > value) value = size, place = at;
  }
  void note(const Peak& other) { note(other.value, other.place); }
};

}  // namespace kda_check::explain
