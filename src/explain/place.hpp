// Where in a problem a forecast speaks of.
#pragma once

#include <cstddef>

namespace kda_check::explain {

/// One element of a factor: token `row` of chunk `chunk` of a sequence, channel of the key dimension.
struct Place {
  std::size_t sequence = 0, batch = 0, head = 0, chunk = 0, row = 0, channel = 0;
};

}  // namespace kda_check::explain
