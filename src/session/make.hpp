// `make`: a regime written as a fixture, for kernels elsewhere to answer.
#pragma once

#include <string>

#include "fixture/fixture.hpp"
#include "fixture/writer.hpp"
#include "kda/regimes.hpp"
#include "report/result.hpp"

namespace kda_check::session {

struct MakeRequest {
  std::string regime;  ///< NAME or NAME:key=value,...
  std::string path;
  fixture::ReadLimits limits;
  int compression = 4;  ///< deflate level, 0 for none
};

/// Writes the file, whole or not at all, and says what it holds. The same request gives the same inputs.
/// Throws Error{usage, input, environment}.
report::FixtureResult make(const MakeRequest& request);

/// What is written for a regime and the problem built from it, without answers. Refers to `problem`.
fixture::WriteRequest regime_file(const kda::RegimeRequest& regime, const kda::Problem& problem);

}  // namespace kda_check::session
