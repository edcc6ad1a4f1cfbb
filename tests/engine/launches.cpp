// The launch of a recorded answer, found while it is compared.
#include "report/document.hpp"
#include "support/catch.hpp"
#include "support/running.hpp"

namespace launches_tests {

using namespace kda_check;

TEST_CASE("the launch that recorded answers and gradients come from is found, and the report names it",
          "[engine][triton]") {
  for (const char* const name : {"fla_fp32_small_backward", "fla_bf16_k32_launch", "fla_fp32_k32_launch"}) {
    CAPTURE(name);
    plan::Request request =
        test::request_for({std::string(KDA_CHECK_SOURCE_DIR) + "/cases/fixtures/" + name + ".h5"});
    request.selection.variants = plan::Names{"chunk"}, request.selection.against = plan::Names{"fla_chunk"};
    request.arithmetic = {"fla"};
    request.judging.limits = test::limits({"max_ulp=exact"});
    const report::Document found = test::ran(request);
    CHECK(report::exit_code(found) == 0);
    REQUIRE(found.cases.size() == 2);
    for (const report::CaseResult& result : found.cases) {
      const bool backward = result.pass == "backward";
      CHECK_THAT(result.arithmetic, ContainsSubstring("+scan:"));
      CHECK((result.arithmetic.find("+wy:") != std::string::npos) == backward);
    }
    request.arithmetic = {"fla", "launch=scan:2"};  // what is named is not looked for
    CHECK(report::exit_code(test::ran(request)) == 1);
  }
}

}  // namespace launches_tests
