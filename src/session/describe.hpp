// A fixture or a problem in a few words.
#pragma once

#include <string>

#include "fixture/fixture.hpp"
#include "report/result.hpp"
#include "session/sources.hpp"

namespace kda_check::session {

std::string shape_text(const kda::Dimensions& dimensions);
std::string options_text(const fixture::Fixture& file);
report::FixtureResult describe(const Source& source);
report::FixtureResult describe(const kda::Problem& problem, const std::string& name, const std::string& path);

}  // namespace kda_check::session
