#include "session/attribute.hpp"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/error.hpp"
#include "report/writers.hpp"
#include "session/run.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

using namespace kda_check;
using numeric::DType;

namespace {

session::AttributeRequest request_for(const std::string& target) {
  session::AttributeRequest request;
  request.targets = {target};
  request.threads = 2;
  return request;
}

const report::AxisShare& axis(const report::Attribution& item, std::string_view name) {
  for (const report::AxisShare& row : item.axes)
    if (row.axis == name) return row;
  throw std::out_of_range("no such axis");
}

}  // namespace

TEST_CASE("tf32 operands explain the error of the chunk form under the preset fla", "[attribute]") {
  session::AttributeRequest request = request_for("control:T=96,K=32,V=32");
  request.variants = {"chunk"};
  request.arithmetic = {"fla"};
  const report::AttributionResult result = session::attribute(request, {});
  REQUIRE(result.attributions.size() == 2);
  for (const report::Attribution& item : result.attributions) {
    CHECK(axis(item, "storage").share > 0.9);
    CHECK(axis(item, "storage").value == "fla");
    CHECK(axis(item, "storage").without < item.full / 100);
    CHECK_THAT(item.note, ContainsSubstring("swamps the rest"));
    double sum = item.ideal_share + item.interaction;
    for (const report::AxisShare& row : item.axes) sum += row.share;
    CHECK(sum == Approx(1));
  }
  // The stages are those of o, each with an error of its own; none of them makes o worse than it was by much.
  REQUIRE(result.attributions[0].stages.size() == kda::forward_stage_count);
  for (const report::StageShare& stage : result.attributions[0].stages) CHECK(stage.share > -1);
}

TEST_CASE("an axis that is ideal has no share, and one that is not has one", "[attribute]") {
  session::AttributeRequest request = request_for("control:T=200,K=64,V=32");
  request.variants = {"recurrent"};
  request.arithmetic = {"ideal", "exponential=poly"};
  const report::AttributionResult result = session::attribute(request, {});
  const report::Attribution& o = result.attributions.at(0);
  for (const char* const name : {"contraction", "reduction", "storage"})
    CHECK(axis(o, name).share == Approx(0).margin(1e-12));
  CHECK(axis(o, "exponential").only == o.full);
  CHECK(axis(o, "exponential").without == o.ideal);
  CHECK(axis(o, "exponential").share > 0.05);
  CHECK(o.interaction == Approx(0).margin(1e-9));
}

TEST_CASE("the ladder between two arithmetics of ours ends with no differing bit", "[attribute]") {
  session::AttributeRequest request = request_for("control:T=70,K=32,V=32");
  request.dtypes = {"fp32"};
  request.between = {"chunk+h100", "recurrent+ieee"};
  const report::AttributionResult result = session::attribute(request, {});
  REQUIRE(result.ladders.size() == 2);
  for (const report::Ladder& ladder : result.ladders) {
    REQUIRE(ladder.rungs.size() >= 5);
    CHECK(ladder.rungs.front().differing > 0);
    CHECK(ladder.rungs.back().differing == 0);
    CHECK(ladder.rungs.back().remaining == 0);
    double sum = 0;
    for (const report::Rung& rung : ladder.rungs) sum += rung.share;
    CHECK(sum == Approx(1));
  }
}

TEST_CASE("what attribute cannot do is said in one line", "[attribute]") {
  const auto usage = [](auto change) {
    session::AttributeRequest request = request_for("control:T=8,K=8,V=8");
    change(request);
    try {
      session::attribute(request, {});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(usage([](auto& r) { r.arithmetic = {"flaa"}; }), ContainsSubstring("did you mean 'fla'"));
  CHECK_THAT(usage([](auto& r) {
               r.between = {"chunk", "nobody"};
             }),
             ContainsSubstring("neither a variant nor a recorded answer"));
  CHECK_THAT(usage([](auto& r) {
               r.dtypes = {"fp64"}, r.between = {"chunk+fla", "naive"};
             }),
             ContainsSubstring("fp32 only"));
}

TEST_CASE("run --stages tells stages in text and JSON, and where a recorded answer is another",
          "[session][stages]") {
  test::ProblemSpec spec;
  spec.T = 40, spec.K = 16, spec.V = 12, spec.chunk_size = 16;
  const kda::Problem problem = test::make_problem(spec);
  const kda::Answer answer = test::run(problem, "chunk", DType::fp32);
  const test::TemporaryFixture file(problem, &answer, "stages");
  session::RunRequest request;
  request.fixtures = {file.path};
  request.variants = {"chunk"};
  request.dtypes = {"fp32", "fp64"};
  request.against = {"oracle"};
  request.stages = true;
  const report::Result result = session::run(request, {});
  REQUIRE(result.stages.size() == 2);
  for (const report::StageCase& item : result.stages) {
    CHECK(item.rows.size() == kda::forward_stage_count);
    CHECK(item.divergence.empty());
    for (const report::StageRowResult& row : item.rows) {
      CHECK(row.nonfinite == 0);
      CHECK(row.own_scaled_ulp.has_value());
      CHECK(row.scaled_ulp <= row.limit);
    }
  }
  CHECK_THAT(report::write_text(result, {}), ContainsSubstring("no stage leaves the truth"));
  const auto document = nlohmann::json::parse(report::write_json(result, {}));
  CHECK(document["stages"].size() == 2);
  CHECK(document["stages"][0]["stages"][2]["name"] == "Akk_inv");
}

TEST_CASE("on the captures storage explains fla_chunk, and its emulation errs as it does",
          "[attribute][captures]") {
  const std::string folder = test::large_fixtures();
  if (folder.empty())
    KDA_CHECK_SKIP("the large fixtures are not here (KDA_CHECK_FIXTURES names their folder)");
  session::AttributeRequest request = request_for(folder + "/fla_fp32_varlen.h5");
  request.variants = {"chunk"};
  request.arithmetic = {"fla"};
  const report::Attribution item = session::attribute(request, {}).attributions.at(0);
  CHECK(axis(item, "storage").share > 0.95);
  CHECK(item.full == Approx(9.66e-4).epsilon(0.05));  // fla_chunk's own: 9.66e-4 (docs/measurements.md)

  request.variants.clear();
  request.arithmetic.clear();
  request.between = {"fla_chunk", "recurrent"};
  const report::AttributionResult between = session::attribute(request, {});
  const report::Ladder& o = between.ladders.at(0);
  CHECK(o.rungs.front().differing > o.elements * 9 / 10);
  CHECK(o.rungs[o.rungs.size() - 2].differing < o.elements / 10);
}

TEST_CASE("the fp16 capture of FLA's chunk kernel is reproduced bit for bit", "[attribute][captures]") {
  const std::string folder = test::large_fixtures();
  if (folder.empty())
    KDA_CHECK_SKIP("the large fixtures are not here (KDA_CHECK_FIXTURES names their folder)");
  session::AttributeRequest request = request_for(folder + "/fla_fp16_c32.h5");
  request.between = {"fla_chunk", "recurrent"};
  const report::Ladder o = session::attribute(request, {}).ladders.at(0);
  REQUIRE(o.tensor == "o");
  CHECK(o.elements == 20480);
  CHECK(o.rungs.front().differing > 1000);
  CHECK(o.rungs[o.rungs.size() - 2].differing == 0);
}
