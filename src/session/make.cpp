#include "session/make.hpp"

#include <fmt/format.h>

#include "report/version.hpp"
#include "session/describe.hpp"
#include "session/sources.hpp"

namespace kda_check::session {

fixture::WriteRequest regime_file(const kda::RegimeRequest& regime, const kda::Problem& problem) {
  fixture::WriteRequest file;
  file.name = regime.text;
  file.description = regime.recipe->summary;
  file.problem = &problem;
  file.provenance = {{"tool", fmt::format("kda-check {}", version)},
                     {"regime", std::string(regime.recipe->name)},
                     {"parameters", regime.settings.text()},
                     {"seed", static_cast<std::int64_t>(regime.settings.seed())}};
  return file;
}

report::FixtureResult make(const MakeRequest& request) {
  const kda::RegimeRequest regime = kda::parse_regime(request.regime);
  const kda::Problem problem = build_regime(regime, request.limits);
  fixture::WriteRequest file = regime_file(regime, problem);
  file.compression = request.compression;
  fixture::write_fixture(request.path, file);
  return describe(problem, request.regime, request.path);
}

}  // namespace kda_check::session
