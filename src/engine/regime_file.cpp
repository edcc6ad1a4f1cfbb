#include "engine/regime_file.hpp"

#include <fmt/format.h>

#include "base/version.hpp"

namespace kda_check::engine {

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

}  // namespace kda_check::engine
