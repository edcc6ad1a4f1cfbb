// `run --stages` on problems with a loss.
#include <unistd.h>

#include <filesystem>

#include "fixture/writer.hpp"
#include "report/writers.hpp"
#include "session/run.hpp"
#include "session/staging.hpp"
#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"
#include "support/temporary_fixture.hpp"

using namespace kda_check;
using Catch::Matchers::StartsWith;
using kda::Passes;
using kda::Stage;
using numeric::DType;

namespace {

kda::Problem small(bool loss) {
  test::ProblemSpec spec;
  spec.T = 40, spec.K = 16, spec.V = 12, spec.chunk_size = 16, spec.cu_seqlens = {0, 19, 40};
  kda::Problem problem = test::make_problem(spec);
  if (loss) test::add_loss(problem);
  return problem;
}

session::RunRequest request_for(const std::string& path) {
  session::RunRequest request;
  request.fixtures = {path};
  request.variants = {"chunk"};
  request.against = {"oracle"};
  request.stages = true;
  return request;
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
          "[session][stages][backward]") {
  const test::TemporaryFixture with(small(true), nullptr, "loss"), without(small(false), nullptr, "no-loss");
  session::RunRequest request = request_for(with.path);
  request.dtypes = {"fp32", "fp64", "bf16"};
  const report::Result result = session::run(request, {});
  REQUIRE(result.stages.size() == 3);
  for (const report::StageCase& item : result.stages) {
    INFO(item.dtype);
    CHECK(item.divergence.empty());
    REQUIRE(item.rows.size() == kda::stage_count);
    for (std::size_t s = 0; s < kda::stage_count; ++s) {
      const report::StageRowResult& row = item.rows[s];
      INFO(row.name);
      CHECK(row.name == kda::stages(Passes::both)[s].name);
      CHECK(row.nonfinite == 0);
      CHECK(row.compared > 0);
      CHECK(row.scaled_ulp <= row.limit);
      REQUIRE(row.own_scaled_ulp.has_value());
      CHECK(*row.own_scaled_ulp <= row.limit);
    }
  }
  const auto row_of = [](const report::StageCase& item, Stage stage) {
    return item.rows.at(static_cast<std::size_t>(stage));
  };
  for (const report::StageCase& item : result.stages) {
    if (item.dtype != "bf16") continue;
    // What FLA's kernels round, they round here; the scores' gradients stay fp32.
    for (const Stage stage : {Stage::dv_local, Stage::dh, Stage::dv, Stage::dw})
      CHECK(row_of(item, stage).dtype == "bf16");
    for (const Stage stage : {Stage::dAqk, Stage::dAkk}) CHECK(row_of(item, stage).dtype == "fp32");
  }
  CHECK_THAT(report::write_text(result, {}), ContainsSubstring("dAkk"));

  request.dtypes = {"fp32"};
  request.backward = false;
  CHECK(session::run(request, {}).stages.at(0).rows.size() == kda::forward_stage_count);
  request = request_for(without.path);
  CHECK(session::run(request, {}).stages.at(0).rows.size() == kda::forward_stage_count);
}

TEST_CASE("a fault of the backward pass is named where it first shows", "[session][stages][backward]") {
  const test::TemporaryFixture file(small(true), nullptr, "fault");
  std::vector<kda::Variant> registry{kda::variant_named("chunk")};
  registry.front().run_backward = with_wrong_dw;
  session::RunRequest request = request_for(file.path);
  request.registry = registry;
  const report::StageCase item = session::run(request, {}).stages.at(0);
  // The last chunk of the second sequence, the first to go backwards: chunks 0 and 1, then 2 and 3.
  CHECK_THAT(item.divergence, StartsWith("dAkk, chunk 3 (b=0 t=35..39)"));
  for (const report::StageRowResult& row : item.rows) {
    INFO(row.name);
    CHECK((row.scaled_ulp > row.limit) == (row.name == "dAkk"));
    CHECK(*row.own_scaled_ulp <= row.limit);
  }
}

TEST_CASE("backward stages that a file recorded are compared too", "[session][stages][backward]") {
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
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("kda-check-backward-stages" + std::to_string(::getpid()) + ".h5"))
                               .string();
  fixture::WriteRequest write;
  write.name = "recorded", write.problem = &problem;
  write.expected.push_back(recorded);
  fixture::write_fixture(path, write);
  const report::Result result = session::run(request_for(path), {});
  std::filesystem::remove(path);
  REQUIRE(result.stages.size() == 2);
  const report::StageCase &computed = result.stages[0], &file = result.stages[1];
  REQUIRE(file.recorded);
  CHECK(file.rows.size() == kda::stage_count);
  CHECK(computed.divergence.empty());
  CHECK_THAT(file.divergence, StartsWith("dv, chunk 3"));
  REQUIRE(computed.disagreements.size() == 1);
  CHECK_THAT(computed.disagreements[0], ContainsSubstring("first disagrees at dv, chunk 3"));
}
