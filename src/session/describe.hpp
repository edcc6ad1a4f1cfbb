// A fixture in a few words.
#pragma once

#include <string>

#include "fixture/fixture.hpp"
#include "report/result.hpp"

namespace kda_check::session {

std::string shape_text(const kda::Dimensions& dimensions);
std::string options_text(const fixture::Fixture& file);
report::FixtureResult describe(const fixture::Fixture& file);

}  // namespace kda_check::session
