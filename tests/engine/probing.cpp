#include <nlohmann/json.hpp>

#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace probing_tests {

using namespace kda_check;
using judge::Verdict;
using numeric::DType;
using test::TemporaryFixture;

namespace {

report::Document probed(const std::string& path) {
  plan::Request request = test::request_for({path});
  request.selection.against = plan::Names{"oracle"};
  request.probe = true;
  return test::ran(request, test::on_threads(2));
}

kda::Problem problem() {
  test::ProblemSpec spec;
  spec.T = 40, spec.H = 2, spec.HV = 4, spec.K = 16, spec.V = 24, spec.gate = kda::Gate::softplus;
  return test::make_problem(spec);
}

}  // namespace

TEST_CASE("run --probe names the convention of a failing answer, in text and JSON", "[engine][probe]") {
  // The answer to the same inputs under another option: what a kernel that ignores the scale would leave.
  const kda::Problem right = problem();
  kda::Problem misread = problem();
  misread.options.scale = 1.0;
  const kda::Answer answer = test::run(misread, "recurrent", DType::fp32);
  const TemporaryFixture file(right, &answer, "probe");
  const report::Document document = probed(file.path);
  std::size_t failed = 0;
  for (const report::CaseResult& item : document.cases) {
    CHECK(item.probe.has_value() == (item.verdict == Verdict::fail));
    if (!item.probe) continue;
    ++failed;
    CHECK(item.variant == "somebody");
    REQUIRE(item.probe->matches.size() == 1);
    CHECK(item.probe->matches[0].convention == "scale_missing");
    CHECK(item.probe->matches[0].tensor == "o");
    CHECK(item.probe->matches[0].rms_ratio_before > 1);
    CHECK(item.probe->matches[0].rms_ratio_after < 1e-6);
  }
  CHECK(failed == 1);
  CHECK_THAT(report::write_text(document, {}),
             ContainsSubstring("probe: matches if q is not scaled (scale_missing): o rms_ratio "));
  const auto json = nlohmann::json::parse(report::write_json(document, {}));
  for (const auto& item : json["cases"]) CHECK(item.contains("probe") == (item["verdict"] == "fail"));
  for (const auto& item : json["cases"])
    if (item["variant"] == "somebody") CHECK(item["probe"]["matches"][0]["convention"] == "scale_missing");
}

TEST_CASE("run --probe says when nothing explains a failure", "[engine][probe]") {
  const kda::Problem right = problem();
  kda::Answer answer = test::run(right, "recurrent", DType::fp32);
  for (std::size_t i = 0; i < answer.o.size(); i += 3) answer.o.set(i, answer.o.value(i) * 1.02);
  const TemporaryFixture file(right, &answer, "probe");
  CHECK_THAT(report::write_text(probed(file.path), {}),
             ContainsSubstring("probe: no known convention explains it"));
}

TEST_CASE("run --probe adds nothing to what passes", "[engine][probe]") {
  const std::string path = test::case_fixtures() + "/fla_fp32_small.h5";
  const report::Document document = probed(path);
  CHECK(report::exit_code(document) == 0);
  CHECK(report::write_text(document, {}).find("probe") == std::string::npos);
}

}  // namespace probing_tests
