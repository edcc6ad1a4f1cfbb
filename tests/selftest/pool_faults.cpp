// Kernels that are wrong in their pool break the laws of the life of a state, and no other law.
#include "hypotheses/naming/pool_faults.hpp"

#include "support/catch.hpp"
#include "support/pools.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace pool_faults_tests {

using namespace kda_check;
using hypotheses::PoolFault;
using judge::Verdict;
using test::TemporaryFixture;

namespace {

/// "decode server ": what is broken of the oracle and the laws.
std::string broken_by(const PoolFault& fault) {
  kda::Variant variant = kda::variant_named("recurrent");
  variant.run = [&fault](const kda::Problem& problem, const kda::RunOptions& options) {
    return hypotheses::with_pool_fault(fault, problem, options);
  };
  const TemporaryFixture file(test::make_problem(test::three_rows()), nullptr, "life");
  plan::Request request = test::request_for({file.path});
  request.registry = {&variant, 1};
  request.invariants.emplace();
  std::set<std::string> names;
  for (const report::CaseResult& item : test::ran(request).cases)
    if (item.verdict != Verdict::pass && item.verdict != Verdict::skipped)
      names.insert(item.against.substr(item.against.find(':') + 1));
  std::string text;
  for (const std::string& name : names) text += name + ' ';
  return text;
}

}  // namespace

TEST_CASE("kernels that are wrong in their pool break the laws of the life of a state, and nothing else",
          "[invariants][pool]") {
  for (const PoolFault& fault : hypotheses::pool_faults()) {
    INFO(fault.what);
    std::string laws;
    for (const std::string& law : fault.breaks) laws += law + ' ';
    CHECK(!laws.empty());
    CHECK(broken_by(fault) == laws);
  }
}

TEST_CASE("a kernel that stores in the pool itself, and rightly, breaks no law", "[invariants][pool]") {
  CHECK(broken_by({"", "", {}}).empty());
}

}  // namespace pool_faults_tests
