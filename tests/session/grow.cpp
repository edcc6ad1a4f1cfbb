#include "session/grow.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "support/catch.hpp"
#include "support/growth.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"
#include "support/temporary_fixture.hpp"

using namespace kda_check;
using numeric::DType;
using test::TemporaryFixture;

namespace {

const report::GrowthCase& find(const report::GrowthResult& result, std::string_view answer) {
  for (const report::GrowthCase& item : result.cases)
    if (item.answer == answer) return item;
  FAIL("no answer " << answer);
  return result.cases.front();
}

/// slow_alpha of docs/regimes.md: the same gate at every token, hardly any writing.
kda::Problem slow_alpha(std::size_t T, double g, double beta) {
  test::ProblemSpec spec;
  spec.T = T, spec.K = 16, spec.V = 8;
  kda::Problem problem = test::make_problem(spec);
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, g);
  for (std::size_t i = 0; i < problem.beta.size(); ++i) problem.beta.set(i, beta);
  return problem;
}

}  // namespace

TEST_CASE("a perturbation is first crossed at its token, head and lane", "[session][grow]") {
  test::ProblemSpec spec;
  spec.T = 90, spec.H = 2, spec.HV = 4;
  const kda::Problem problem = test::make_problem(spec);
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  const auto perturb = [&](std::size_t t, std::size_t h, std::size_t v, double by) {
    const std::size_t at = (t * 4 + h) * spec.V + v;
    answer.o.set(at, answer.o.value(at) + by);
  };
  perturb(37, 2, 3, 0.01);
  perturb(61, 0, 1, 5);  // later and larger
  const TemporaryFixture file(problem, &answer, "grow");
  session::GrowRequest request = test::grow_request(file.path);
  request.window = 10;
  const report::GrowthResult result = session::grow(request, {});
  const report::GrowthCase& item = find(result, "somebody");
  REQUIRE(test::crossing(item, "scaled_ulp").crossed);
  CHECK(test::crossing(item, "scaled_ulp").position == 37);
  CHECK(test::crossing(item, "scaled_ulp").place == "o[b=0 t=37 h=2 v=3]");
  CHECK(test::crossing(item, "scaled_ulp").source == "derived");
  CHECK(test::crossing(item, "rms_ratio").position == 30);
  CHECK(test::crossing(item, "rms_ratio").place == "o[b=0 t=30 h=2]");
  CHECK(item.worst_head == 0);
  for (const report::GrowthCrossing& untouched : find(result, "recurrent").crossings)
    CHECK(!untouched.crossed);
  CHECK(result.exit_code() == 0);  // derived limits inform

  request.limits = {compare::parse_limit("max_abs=0.1")};
  const report::GrowthResult limited = session::grow(request, {});
  CHECK(test::crossing(find(limited, "somebody"), "max_abs").position == 61);
  CHECK(limited.exit_code() == 1);
}

TEST_CASE("on a slow constant decay the fp32 recurrence grows with every token, the chunk form far less",
          "[session][grow]") {
  const TemporaryFixture file(slow_alpha(2048, -8e-5, 1e-3), nullptr, "slow");
  session::GrowRequest request = test::grow_request(file.path);
  request.variants = {"recurrent", "chunk"};
  request.oracle = kda::OraclePrecision::fp64;
  const report::GrowthResult result = session::grow(request, {});
  const report::GrowthCase &recurrent = find(result, "recurrent"), &chunk = find(result, "chunk");
  INFO("recurrent " << recurrent.fit.slope << " chunk " << chunk.fit.slope << " last "
                    << recurrent.windows.back().rms_ratio << ' ' << chunk.windows.back().rms_ratio);
  CHECK(recurrent.trend == "grows");
  CHECK(recurrent.fit.slope == Approx(1).margin(0.15));
  CHECK(recurrent.fit.r2 > 0.95);
  CHECK(chunk.fit.slope < 0.6);
  CHECK(recurrent.windows.back().rms_ratio > 8 * chunk.windows.back().rms_ratio);
}

TEST_CASE("windows agree with what run measures over the whole tensor", "[session][grow]") {
  const std::string path = test::case_fixtures() + "/fla_fp32_varlen.h5";
  session::GrowRequest request = test::grow_request(path);
  request.window = 1 << 20;  // one window: everything
  const report::GrowthResult result = session::grow(request, {});
  const report::GrowthCase& item = find(result, "fla_chunk");
  REQUIRE(item.windows.size() == 1);
  CHECK(item.windows[0].rms_ratio == Approx(1e-3).epsilon(0.15));  // fixture-format.md
  CHECK(item.trend == "unclear");
}

TEST_CASE("against a recorded answer, itself is left out", "[session][grow]") {
  session::GrowRequest request = test::grow_request(test::case_fixtures() + "/fla_fp32_small.h5");
  request.variants = {"naive", "recurrent", "chunk"};
  request.against = "fla_chunk";
  request.window = 8;
  const report::GrowthResult result = session::grow(request, {});
  CHECK(result.cases.size() == 5);
  for (const report::GrowthCase& item : result.cases) {
    CHECK(item.answer != "fla_chunk");
    CHECK(item.windows[0].rms_ratio == Approx(1e-3).epsilon(0.2));
  }
  request.against = "fla_chnk";
  CHECK(session::grow(request, {}).exit_code() == 3);
}

TEST_CASE("JSON and table of grow hold the same numbers", "[session][grow]") {
  const std::string path = test::case_fixtures() + "/fla_fp32_small.h5";
  session::GrowRequest request = test::grow_request(path);
  request.window = 8;
  const report::GrowthResult result = session::grow(request, {});
  const auto document = nlohmann::json::parse(report::write_growth_json(result));
  const std::string text = report::write_growth_text(result, {});
  CHECK(document["schema_version"] == 1);
  CHECK(document["request"]["command"] == "grow");
  REQUIRE(document["growth"].size() == result.cases.size());
  for (std::size_t i = 0; i < result.cases.size(); ++i) {
    const auto& item = document["growth"][i];
    const auto& ratios = item["windows"]["rms_ratio"];
    REQUIRE(ratios.size() == 8);
    CHECK(item["heads"][0]["window_rms_ratio"] == ratios);  // of one head
    const std::string name = item["answer"];
    const std::size_t row = text.find(fmt::format("  {} ", name));
    REQUIRE(row != std::string::npos);
    const std::string line = text.substr(row, text.find('\n', row) - row);
    INFO(line);
    CHECK_THAT(line, ContainsSubstring(fmt::format("{:.3g}", ratios.front().get<double>())));
    CHECK_THAT(line, ContainsSubstring(fmt::format("{:.3g}", ratios.back().get<double>())));
    CHECK_THAT(line, ContainsSubstring(fmt::format("{:.2f} +-", item["fit"]["slope"].get<double>())));
    CHECK_THAT(line, ContainsSubstring(item["trend"].get<std::string>()));
  }
}

TEST_CASE("grow does not depend on the number of threads", "[session][grow]") {
  session::GrowRequest request = test::grow_request(test::case_fixtures() + "/fla_fp32_varlen.h5");
  request.threads = 1;
  const std::string one = report::write_growth_json(session::grow(request, {}));
  request.threads = 5;
  CHECK(one == report::write_growth_json(session::grow(request, {})));
}

TEST_CASE("grow refuses what has no tokens and limits it does not follow", "[session][grow]") {
  session::GrowRequest request = test::grow_request(test::case_fixtures() + "/fla_fp32_small.h5");
  request.tensors = {"final_state"};
  CHECK_THROWS_WITH(session::grow(request, {}), ContainsSubstring("grow has no tensor 'final_state'"));
  request.tensors = {"o"};
  request.limits = {compare::parse_limit("max_ulp=3")};
  CHECK_THROWS_WITH(session::grow(request, {}), ContainsSubstring("does not follow max_ulp"));
}
