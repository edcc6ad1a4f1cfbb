// A regime as a fixture.
#pragma once

#include "fixture/writer.hpp"
#include "kda/problem/passes.hpp"
#include "kda/regimes/regimes.hpp"

namespace kda_check::engine {

/// What `make` writes, with the words that make it again.
struct RegimeFile {
  kda::Tensors made;  ///< of the output that these words ask for
  fixture::WriteRequest request;
};
/// `problem`: built from it; must outlive the request.
RegimeFile regime_file(const kda::RegimeRequest& regime, const kda::Problem& problem, int threads);

}  // namespace kda_check::engine
