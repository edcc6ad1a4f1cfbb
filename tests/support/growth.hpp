// What tests of `grow` ask for and look for.
#pragma once

#include <string>
#include <string_view>

#include "report/growth.hpp"
#include "session/grow.hpp"
#include "support/catch.hpp"

namespace kda_check::test {

inline session::GrowRequest grow_request(const std::string& target) {
  session::GrowRequest request;
  request.targets = {target};
  request.threads = 2;
  return request;
}

inline const report::GrowthCrossing& crossing(const report::GrowthCase& item, std::string_view metric) {
  for (const report::GrowthCrossing& candidate : item.crossings)
    if (candidate.metric == metric) return candidate;
  FAIL("no limit on " << metric);
  return item.crossings.front();
}

}  // namespace kda_check::test
