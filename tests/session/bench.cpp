#include "session/bench.hpp"

#include "base/error.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

using namespace kda_check;
using numeric::DType;

TEST_CASE("bench checks the arithmetic as run does", "[session][bench]") {
  const auto usage = [](std::vector<std::string> variants, std::vector<std::string> dtypes,
                        std::string axis) {
    session::BenchRequest request;
    request.T = 4, request.H = 1, request.K = 8, request.V = 8, request.repeats = 1;
    request.variants = std::move(variants), request.dtypes = std::move(dtypes);
    request.arithmetic = {std::move(axis)};
    try {
      session::bench(request, {});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK_THAT(usage({"recurrent"}, {}, "bogus=1"), ContainsSubstring("no axis 'bogus'"));
  CHECK_THAT(usage({"recurrent"}, {}, "decay=pair"), ContainsSubstring("none of the selected variants"));
  CHECK_THAT(usage({"recurrent"}, {"fp64"}, "exponential=cuda"), ContainsSubstring("fp32 only"));
  CHECK_THAT(usage({"orcale"}, {}, "contraction=fused"), ContainsSubstring("did you mean 'oracle'?"));
  CHECK(usage({"recurrent"}, {"fp64", "fp32"}, "exponential=cuda") == "accepted");
}

TEST_CASE("bench reports every variant, the oracle and a share of the peak", "[session][bench]") {
  session::BenchRequest request;
  request.T = 32, request.H = 2, request.K = 32, request.V = 32, request.repeats = 1;
  const session::BenchResult result = session::bench(request, {});
  CHECK(result.peak_fp32 > 0);
  CHECK(result.rows.size() == 4);
  for (const session::BenchRow& row : result.rows) {
    CHECK(row.microseconds > 0);
    CHECK((row.variant == "oracle") == (row.of_peak == 0));
  }
}
