// An answer to a call on a pool, through a file and a run.
#pragma once

#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace kda_check::test {

/// What is said of somebody's answer beside the oracle.
inline report::CaseResult judged_call(const kda::Problem& problem, const kda::Tensors& answer) {
  std::vector<const tensor::Tensor*> tensors;
  for (const auto& [name, tensor] : answer) tensors.push_back(&tensor);
  const TemporaryFixture file(problem, tensors, numeric::ComputeFormat::fp32, "call");
  plan::Request request = request_for({file.path});
  request.selection.variants.emplace();
  const report::Document document = ran(request);
  REQUIRE(document.failures.empty());
  return case_of(document, "somebody", "oracle");
}

}  // namespace kda_check::test
