#include "engine/regime_file.hpp"

#include <fmt/format.h>

#include "base/version.hpp"
#include "plan/made_output.hpp"

namespace kda_check::engine {

RegimeFile regime_file(const kda::RegimeRequest& regime, const kda::Problem& problem, int threads) {
  RegimeFile file;
  fixture::WriteRequest& request = file.request;
  request.name = regime.text;
  request.description = regime.recipe->summary;
  request.problem = &problem;
  request.provenance = {{"tool", fmt::format("kda-check {}", version)},
                        {"regime", std::string(regime.recipe->name)},
                        {"parameters", regime.settings.text()},
                        {"seed", static_cast<std::int64_t>(regime.settings.seed())}};
  if (const auto made = plan::MadeOutput::of(regime, problem)) {
    file.made = made->computed(problem, threads);
    fixture::ExpectedAnswer& answer = request.expected.emplace_back();
    answer.name = made->group().name, answer.compute = made->group().compute;
    for (const auto& [name, tensor] : file.made) answer.tensors.push_back(&tensor);
  }
  return file;
}

}  // namespace kda_check::engine
