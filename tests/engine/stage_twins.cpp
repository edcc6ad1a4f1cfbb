// Stages beside those of emulated kernels: wrong ones fail where they are wrong, healthy ones pass.
#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <limits>

#include "fixture/writer.hpp"
#include "hypotheses/spread.hpp"
#include "report/writers.hpp"
#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"
#include "support/running.hpp"
#include "support/sampled.hpp"
#include "support/temporary_folder.hpp"

namespace stage_twins_tests {

using namespace kda_check;
using Catch::Matchers::StartsWith;
using Catch::Matchers::WithinAbs;
using judge::Verdict;
using kda::Passes;
using kda::Stage;
using kda::StageTensors;
using numeric::ComputeFormat;
using numeric::DType;
using plan::Names;
using test::Item;
using test::Row;

namespace {

constexpr std::size_t chunk_size = 64;

/// Three chunks and a ragged tail; two heads.
kda::Problem problem_of(bool state_v_first = false) {
  test::ProblemSpec spec;
  spec.T = 200, spec.H = spec.HV = 2, spec.K = 32, spec.V = 32, spec.state_v_first = state_v_first;
  kda::Problem problem = with_inputs_rounded_to(test::make_problem(spec), DType::bf16);
  test::add_loss(problem);
  return problem;
}

/// What `chunk` makes of it, backwards too.
StageTensors stages_of(const kda::Problem& problem, const kda::RunOptions& asked) {
  StageTensors stages = kda::allocate_stages(problem, chunk_size, DType::fp32, Passes::both);
  kda::RunOptions options = asked;
  options.stages.computed = &stages;
  kda::run_chunk(problem, options);
  kda::run_chunk_backward(problem, options);
  return stages;
}

/// Rows of a head in one chunk times `factor`; of triangles and states all of them.
void scale(tensor::Tensor& tensor, Stage stage, const kda::Problem& problem, std::size_t chunk,
           std::size_t head, double factor) {
  const kda::StageLayout layout(stage, kda::chunked_dimensions(problem, chunk_size),
                                problem.options.state_v_first);
  const std::size_t begin = chunk * chunk_size;
  const kda::ChunkPlace place{0, begin, std::min(chunk_size, problem.dimensions().T - begin), chunk, head};
  for (std::size_t row = 0; row < layout.rows(place); ++row)
    for (std::size_t column = 0; column < layout.columns(place); ++column) {
      const std::size_t at = layout.element(place, row, column);
      tensor.set(at, tensor.value(at) * factor);
    }
}

/// A file in which somebody recorded these stages.
class Recorded {
 public:
  Recorded(const kda::Problem& problem, const StageTensors& stages, ComputeFormat compute)
      : path_(folder_ / "mine.h5") {
    const kda::Answer answer = test::run(problem, "chunk", DType::bf16);
    fixture::ExpectedAnswer mine{"mine", "", "", compute, {&answer.o, &answer.final_state}, {}};
    for (const tensor::Tensor& stage : stages)
      if (!stage.empty()) mine.stages.push_back(&stage);
    fixture::WriteRequest request;
    request.name = "mine", request.problem = &problem;
    request.expected.push_back(mine);
    fixture::write_fixture(path_, request);
  }
  const std::string& path() const { return path_; }
  std::string in_folder(const std::string& name) const { return folder_ / name; }

 private:
  test::TemporaryFolder folder_;
  std::string path_;
};

plan::Request with_stages(const std::string& path) {
  plan::Request request = test::request_for({path}, plan::Names{});
  request.selection.against = Names{};
  request.stages = true;
  return request;
}

report::Entry judged(const kda::Problem& problem, const StageTensors& stages, ComputeFormat compute) {
  const Recorded file(problem, stages, compute);
  const report::Document document = test::ran(with_stages(file.path()));
  const std::vector<Item> items = test::items_of(document, "stages");
  REQUIRE(items.size() == 1);
  return items.front().entry();
}

kda::RunOptions bf16_of(const kda::Problem& problem) {
  return test::default_options(problem, "chunk", DType::bf16);
}

tensor::Tensor& of(StageTensors& stages, Stage stage) { return stages[static_cast<std::size_t>(stage)]; }

}  // namespace

TEST_CASE("a stage that is one per cent too large in one chunk of one head fails, and the sentence says so",
          "[engine][stages][twins]") {
  const bool v_first = GENERATE(false, true);
  const kda::Problem problem = problem_of(v_first);
  struct Fault {
    Stage stage;
    std::size_t chunk, head;
    const char* place;
  };
  const Fault faults[] = {
      {Stage::g_cumsum, 0, 1, "g_cumsum: tokens 0..63 of head 1: "},
      {Stage::Aqk, 1, 1, "Aqk: tokens 64..127 of head 1: "},
      {Stage::w, 2, 0, "w: tokens 128..191 of head 0: "},
      {Stage::kg, 1, 1, "kg: tokens 64..127 of head 1: "},
      {Stage::h, 2, 1, "h: chunk 2 of head 1: "},
      {Stage::v_new, 0, 0, "v_new: tokens 0..63 of head 0: "},
      {Stage::dAqk, 1, 0, "dAqk: tokens 64..127 of head 0: "},
      {Stage::dh, 1, 0, "dh: chunk 1 of head 0: "},
      {Stage::dw, 1, 1, "dw: tokens 64..127 of head 1: "},
  };
  test::Sampled sample(3);
  INFO(sample.text());
  for (const Fault& fault : faults) {
    if (!sample.next()) continue;
    StageTensors stages = stages_of(problem, bf16_of(problem));
    scale(of(stages, fault.stage), fault.stage, problem, fault.chunk, fault.head, 1.01);
    const report::Entry entry = judged(problem, stages, ComputeFormat::bf16);
    INFO(fault.place << " | " << entry.reason);
    CHECK(entry.verdict == Verdict::fail);
    REQUIRE_THAT(entry.reason, StartsWith(fault.place) && ContainsSubstring(" % too large"));
    const double percent = std::stod(entry.reason.substr(std::string(fault.place).size()));
    CHECK_THAT(percent, WithinAbs(1, 0.05));
  }
}

TEST_CASE("healthy stages are like those of their twins in every precision, computed and recorded",
          "[engine][stages][twins]") {
  const kda::Problem problem = problem_of();
  StageTensors stages = stages_of(problem, bf16_of(problem));
  // Nobody looks above the diagonal, nor beyond the last row of a ragged chunk.
  tensor::Tensor& scores = of(stages, Stage::Aqk);
  for (std::size_t t = 0; t < 200; ++t)
    for (std::size_t head = 0; head < 2; ++head)
      for (std::size_t column = t % chunk_size + 1; column < chunk_size; ++column)
        scores.set((t * 2 + head) * chunk_size + column, std::numeric_limits<double>::quiet_NaN());
  const Recorded file(problem, stages, ComputeFormat::bf16);
  plan::Request request = with_stages(file.path());
  request.selection.variants = Names{"chunk"};
  request.selection.dtypes = Names{"fp64", "fp32", "bf16", "fp16"};
  std::size_t held = 0;
  const report::Document document = test::ran(request);
  for (const Item& item : test::items_of(document, "stages")) {
    INFO(item.words("answer") << ' ' << item.words("dtype") << ' ' << item.entry().reason);
    const bool exact = item.words("dtype") == "fp64";
    CHECK(item.entry().verdict == (exact ? std::nullopt : std::optional(Verdict::pass)));
    for (const Row& row : item.rows("stages")) {
      CHECK(row.is_nothing("twins") == exact);
      held += exact ? 0 : 1;
    }
  }
  CHECK(held >= 4 * kda::stage_count);
  const auto json = report::write_json(document, {});
  CHECK_THAT(json, ContainsSubstring("\"twins\": {"));

  request.test = false;
  const report::Document without = test::ran(request);
  for (const Item& item : test::items_of(without, "stages")) CHECK_FALSE(item.entry().verdict.has_value());
}

TEST_CASE("stages of kernels that round other values than their twins do pass in rows of few scores too",
          "[engine][stages][twins]") {
  const test::Sampled sample(3);
  INFO(sample.text());
  const auto number = static_cast<std::size_t>(GENERATE(0, 1, 2));
  if (!sample.has(number)) return;
  const std::string arithmetic = std::array{"h100-mma", "h100-mma3", "delta=residual"}[number];
  plan::Request request = test::request_for({});
  for (const int seed : {1, 2, 3, 5, 8})
    request.targets.push_back("bwd_chain:T=150,H=1,HV=2,K=64,V=24,dtype=bf16,seed=" + std::to_string(seed));
  request.selection.variants = Names{"chunk"};
  request.selection.against = Names{};
  request.selection.dtypes = Names{"bf16"};
  request.arithmetic = {arithmetic};
  request.stages = true;
  const report::Document document = test::ran(request);
  const std::vector<Item> items = test::items_of(document, "stages");
  REQUIRE(items.size() == request.targets.size());
  for (const Item& item : items) {
    INFO(arithmetic << ' ' << item.section().path << ' ' << item.entry().reason);
    CHECK(item.entry().verdict == Verdict::pass);
    bool is_backward = false;
    for (const Row& row : item.rows("stages")) is_backward |= row.words("name") == "dAqk";
    CHECK(is_backward);
  }
}

TEST_CASE("a triangle whose first rows are too large in one chunk of one head fails there",
          "[engine][stages][twins]") {
  const kda::Problem problem = problem_of();
  const Stage stage = GENERATE(Stage::Aqk, Stage::dAqk, Stage::dAkk);
  StageTensors stages = stages_of(problem, bf16_of(problem));
  tensor::Tensor& triangle = of(stages, stage);
  for (std::size_t row = 0; row < 8; ++row)
    for (std::size_t column = 0; column <= row; ++column) {
      const std::size_t at = ((chunk_size + row) * 2 + 1) * chunk_size + column;
      triangle.set(at, triangle.value(at) * 1.05);
    }
  const report::Entry entry = judged(problem, stages, ComputeFormat::bf16);
  INFO(entry.reason);
  CHECK(entry.verdict == Verdict::fail);
  CHECK_THAT(entry.reason, StartsWith(std::string(kda::row_of(stage).name) + ": tokens 64..") &&
                               ContainsSubstring(" of head 1: "));
}

TEST_CASE("a stage that is not finite where it should be fails", "[engine][stages][twins]") {
  const kda::Problem problem = problem_of();
  StageTensors stages = stages_of(problem, bf16_of(problem));
  of(stages, Stage::u).set(77, std::numeric_limits<double>::infinity());
  const report::Entry entry = judged(problem, stages, ComputeFormat::bf16);
  CHECK(entry.verdict == Verdict::fail);
  CHECK_THAT(entry.reason, ContainsSubstring("u: 1 x +inf for finite"));
}

TEST_CASE("a tolerance with a reason lets a stage that no twin has pass", "[engine][stages][twins]") {
  const kda::Problem problem = problem_of();
  StageTensors stages = stages_of(problem, bf16_of(problem));
  scale(of(stages, Stage::kg), Stage::kg, problem, 1, 1, 1.01);
  const Recorded file(problem, stages, ComputeFormat::bf16);
  const std::string rules = file.in_folder("rules.toml");
  std::ofstream(rules) << "[[rule]]\ntensor = \"kg\"\ntwins = 1e9\nreason = \"a kernel of its own\"\n";
  plan::Request request = with_stages(file.path());
  const report::Document without = test::ran(request);
  CHECK(test::items_of(without, "stages").at(0).entry().verdict == Verdict::fail);
  request.tolerance = rules;
  const report::Document document = test::ran(request);
  CHECK(test::items_of(document, "stages").at(0).entry().verdict == Verdict::pass);
  CHECK_THAT(document.problems.at(0).notes.at(0), ContainsSubstring("a kernel of its own"));
}

TEST_CASE("enough twins have the chunks of an answer, whichever size and precision it has",
          "[engine][stages][twins]") {
  const kda::Problem problem = problem_of();
  for (const std::size_t size : {16UL, 32UL, 64UL, 128UL})
    for (const auto& [compute, dtype] :
         {std::pair(ComputeFormat::fp32, DType::fp32), std::pair(ComputeFormat::tf32, DType::fp32),
          std::pair(ComputeFormat::bf16, DType::bf16), std::pair(ComputeFormat::fp16, DType::fp16)}) {
      const std::vector<hypotheses::Twin> family = hypotheses::twins_of_stages(problem, compute, dtype, size);
      INFO(size << ' ' << numeric::row_of(compute).name);
      CHECK(family.size() >= 8);
      for (const hypotheses::Twin& twin : family) CHECK(twin.options.chunk_size == size);
    }
}

TEST_CASE("stages that kernels recorded on a GPU err as those of their twins do", "[engine][stages][twins]") {
  plan::Request request = with_stages("");
  request.targets.clear();
  test::Sampled sample(3);
  INFO(sample.text());
  for (const std::string& path : test::all_fixture_files())
    if (std::ranges::any_of(fixture::Fixture::open(path).expected(),
                            [](const auto& group) { return !group.stages.empty(); }) &&
        sample.next())
      request.targets.push_back(path);
  if (request.targets.empty()) KDA_CHECK_SKIP("no stages are recorded");
  std::size_t held = 0;
  const report::Document document = test::ran(request);
  for (const Item& item : test::items_of(document, "stages"))
    for (const Row& row : item.rows("stages")) {
      if (row.is_nothing("twins")) continue;
      INFO(item.section().path << ' ' << item.words("answer") << ' ' << row.words("name") << ' '
                               << row.words("reason"));
      ++held;
      // FLA's softplus (docs/explain.md).
      const bool is_finding = row.words("name") == "g_cumsum" && row.words("verdict") == "fail";
      CHECK((is_finding || row.words("verdict") == "pass"));
      if (is_finding) CHECK_THAT(row.words("reason"), ContainsSubstring("x 2^-24 exp(A_log)"));
    }
  if (!test::large_fixtures().empty()) CHECK(held >= 6 * request.targets.size());
}

}  // namespace stage_twins_tests
