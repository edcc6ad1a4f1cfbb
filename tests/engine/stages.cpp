// `run --stages`, forwards.
#include <nlohmann/json.hpp>

#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace stages_tests {

using namespace kda_check;
using numeric::DType;
using plan::Names;

TEST_CASE("run --stages tells stages in text and JSON, and where a recorded answer is another",
          "[engine][stages]") {
  test::ProblemSpec spec;
  spec.T = 40, spec.K = 16, spec.V = 12, spec.chunk_size = 16;
  const kda::Problem problem = test::make_problem(spec);
  const kda::Answer answer = test::run(problem, "chunk", DType::fp32);
  const test::TemporaryFixture file(problem, &answer, "stages");
  plan::Request request = test::request_for({file.path});
  request.selection.variants = Names{"chunk"};
  request.selection.dtypes = Names{"fp32", "fp64"};
  request.selection.against = Names{"oracle"};
  request.stages = true;
  const report::Document document = test::ran(request);
  const std::vector<test::Item> items = test::items_of(document, "stages");
  REQUIRE(items.size() == 2);
  for (const test::Item& item : items) {
    CHECK(item.rows("stages").size() == kda::forward_stage_count);
    CHECK(item.words("divergence").empty());
    CHECK_FALSE(item.flag("recorded"));
    for (const test::Row& row : item.rows("stages")) {
      CHECK(row.count("nonfinite") == 0);
      CHECK_FALSE(row.is_nothing("own_scaled_ulp"));
      CHECK(row.figure("scaled_ulp") <= row.figure("limit"));
    }
  }
  CHECK_THAT(report::write_text(document, {}), ContainsSubstring("no stage leaves the truth"));
  const auto json = nlohmann::json::parse(report::write_json(document, {}));
  CHECK(json["stages"].size() == 2);
  CHECK(json["stages"][0]["stages"][2]["name"] == "Akk_inv");
  CHECK(json["stages"][0]["path"] == file.path);
}

}  // namespace stages_tests
