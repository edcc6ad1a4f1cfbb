// `run --stages` on problems with a loss.
#include "fixture/writer.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/temporary_fixture.hpp"

namespace backward_stages_tests {

using namespace kda_check;
using Catch::Matchers::StartsWith;
using kda::Passes;
using kda::Stage;
using numeric::DType;
using plan::Names;
using test::Item;
using test::items_of;
using test::ran;
using test::Row;

namespace {

kda::Problem small(bool loss) {
  test::ProblemSpec spec;
  spec.T = 40, spec.K = 16, spec.V = 12, spec.chunk_size = 16, spec.cu_seqlens = {0, 19, 40};
  kda::Problem problem = test::make_problem(spec);
  if (loss) test::add_loss(problem);
  return problem;
}

plan::Request request_for(const std::string& path) {
  plan::Request request = test::request_for({path});
  request.selection.variants = Names{"chunk"};
  request.selection.against = Names{"oracle"};
  request.stages = true;
  return request;
}

std::size_t rows_in(const report::Document& document) {
  return items_of(document, "stages").at(0).rows("stages").size();
}

/// `chunk` with a dw that is off by one part in a hundred on its way to dAkk.
kda::GradientTensors with_wrong_dw(const kda::Problem& problem, const kda::RunOptions& options) {
  if (options.stages.given != nullptr) return kda::run_chunk_backward(problem, options);
  kda::StageTensors stages =
      kda::allocate_stages(problem, options.chunk_size, kda::state_dtype(options.dtype), Passes::both);
  kda::RunOptions run = options;
  run.stages = {};
  run.stages.computed = &stages;
  kda::run_chunk_backward(problem, run);
  tensor::Tensor& dw = stages[static_cast<std::size_t>(Stage::dw)];
  for (std::size_t e = 0; e < dw.size(); ++e) dw.set(e, 1.01 * dw.value(e));
  run.stages = options.stages;
  run.stages.given = &stages;
  run.stages.use_given[static_cast<std::size_t>(Stage::dw)] = true;
  return kda::run_chunk_backward(problem, run);
}

}  // namespace

TEST_CASE("run --stages goes backwards where there is a loss, and not with --no-backward",
          "[engine][stages][backward]") {
  const test::TemporaryFixture with(small(true), nullptr, "loss"), without(small(false), nullptr, "no-loss");
  plan::Request request = request_for(with.path);
  request.selection.dtypes = Names{"fp32", "fp64", "bf16"};
  const report::Document document = ran(request);
  const std::vector<Item> items = items_of(document, "stages");
  REQUIRE(items.size() == 3);
  for (const Item& item : items) {
    INFO(item.words("dtype"));
    CHECK(item.words("divergence").empty());
    const std::vector<Row> rows = item.rows("stages");
    REQUIRE(rows.size() == kda::stage_count);
    for (std::size_t s = 0; s < kda::stage_count; ++s) {
      INFO(rows[s].words("name"));
      CHECK(rows[s].words("name") == kda::stages(Passes::both)[s].name);
      CHECK(rows[s].count("nonfinite") == 0);
      CHECK(rows[s].count("compared") > 0);
      CHECK(rows[s].figure("scaled_ulp") <= rows[s].figure("limit"));
      CHECK(rows[s].figure("own_scaled_ulp") <= rows[s].figure("limit"));
    }
    if (item.words("dtype") != "bf16") continue;
    // What FLA's kernels round, they round here; the scores' gradients stay fp32.
    const auto dtype_of = [&](Stage stage) { return rows[static_cast<std::size_t>(stage)].words("dtype"); };
    for (const Stage stage : {Stage::dv_local, Stage::dh, Stage::dv, Stage::dw})
      CHECK(dtype_of(stage) == "bf16");
    for (const Stage stage : {Stage::dAqk, Stage::dAkk}) CHECK(dtype_of(stage) == "fp32");
  }
  CHECK_THAT(report::write_text(document, {}), ContainsSubstring("dAkk"));

  request.selection.dtypes = Names{"fp32"};
  request.selection.pass = kda::Pass::forward;
  CHECK(rows_in(ran(request)) == kda::forward_stage_count);
  CHECK(rows_in(ran(request_for(without.path))) == kda::forward_stage_count);
}

TEST_CASE("a fault of the backward pass is named where it first shows", "[engine][stages][backward]") {
  const test::TemporaryFixture file(small(true), nullptr, "fault");
  std::vector<kda::Variant> registry{kda::variant_named("chunk")};
  registry.front().run_backward = with_wrong_dw;
  plan::Request request = request_for(file.path);
  request.registry = registry;
  const report::Document document = ran(request);
  const Item item = items_of(document, "stages").at(0);
  // The last chunk of the second sequence, the first to go backwards: chunks 0 and 1, then 2 and 3.
  CHECK_THAT(item.words("divergence"), StartsWith("dAkk, chunk 3 (b=0 t=35..39)"));
  for (const Row& row : item.rows("stages")) {
    INFO(row.words("name"));
    CHECK((row.figure("scaled_ulp") > row.figure("limit")) == (row.words("name") == "dAkk"));
    CHECK(row.figure("own_scaled_ulp") <= row.figure("limit"));
  }
}

TEST_CASE("backward stages that a file recorded are compared too", "[engine][stages][backward]") {
  const kda::Problem problem = small(true);
  kda::StageTensors stages = kda::allocate_stages(problem, 16, DType::fp32, Passes::both);
  kda::RunOptions options = test::default_options(problem, "chunk", DType::fp32);
  options.stages.computed = &stages;
  const kda::Answer answer = test::run(problem, "chunk", options);
  kda::run_chunk_backward(problem, options);
  tensor::Tensor& dv = stages[static_cast<std::size_t>(Stage::dv)];
  const std::size_t last = dv.size() - 1;
  dv.set(last, dv.value(last) + 1);
  fixture::ExpectedAnswer recorded;
  recorded.name = "somebody";
  recorded.compute = numeric::ComputeFormat::fp32;
  recorded.tensors = {&answer.o, &answer.final_state};
  for (const tensor::Tensor& stage : stages) recorded.stages.push_back(&stage);
  const test::TemporaryFixture room(problem, nullptr, "recorded-stages");
  fixture::WriteRequest write;
  write.name = "recorded", write.problem = &problem;
  write.expected.push_back(recorded);
  fixture::write_fixture(room.path, write);
  const report::Document document = ran(request_for(room.path));
  const std::vector<Item> items = items_of(document, "stages");
  REQUIRE(items.size() == 2);
  const Item &computed = items[0], &file = items[1];
  REQUIRE(file.flag("recorded"));
  CHECK(file.rows("stages").size() == kda::stage_count);
  CHECK(computed.words("divergence").empty());
  CHECK_THAT(file.words("divergence"), StartsWith("dv, chunk 3"));
  REQUIRE(computed.list("disagreements").size() == 1);
  CHECK_THAT(computed.list("disagreements")[0], ContainsSubstring("first disagrees at dv, chunk 3"));
}

}  // namespace backward_stages_tests
