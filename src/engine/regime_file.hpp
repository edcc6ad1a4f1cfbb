// A regime as a fixture.
#pragma once

#include "fixture/writer.hpp"
#include "kda/regimes/regimes.hpp"

namespace kda_check::engine {

/// What `make` writes, with the words that make it again. `problem`: built from it; must outlive the request.
fixture::WriteRequest regime_file(const kda::RegimeRequest& regime, const kda::Problem& problem);

}  // namespace kda_check::engine
