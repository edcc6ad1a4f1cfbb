// An answer to a call on a pool, through a file and a run.
#pragma once

#include "fixture/fixture.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace kda_check::test {

/// What is said of somebody's answer beside the oracle.
inline report::CaseResult judged_call(const kda::Problem& problem, const kda::Tensors& answer) {
  std::vector<const tensor::Tensor*> tensors;
  for (const auto& [name, tensor] : answer) tensors.push_back(&tensor);
  const TemporaryFixture file(problem, tensors, numeric::ComputeFormat::fp32, "call");
  plan::Request request = request_for({file.path}, plan::Names{});
  const report::Document document = ran(request);
  REQUIRE(document.failures.empty());
  return case_of(document, "somebody", "oracle");
}

/// Written and read, it is the same call, and what its header says is what it is.
inline kda::Problem check_kept(const kda::Problem& problem) {
  const TemporaryFixture file(problem);
  const fixture::Fixture read = fixture::Fixture::open(file.path);
  CHECK(read.warnings().empty());
  kda::Problem again = read.read_problem();
  CHECK(again.pool->table == problem.pool->table);
  CHECK(kda::Outline(again) == read.header().outline());
  return again;
}

}  // namespace kda_check::test
