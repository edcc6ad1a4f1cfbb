#include "explain/stages/stage_errors.hpp"

#include <cmath>

#include "kda/variants/variants.hpp"
#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"

namespace stage_errors_tests {

using namespace kda_check;
using kda::Stage;
using numeric::DType;

namespace {

std::size_t number(Stage stage) { return static_cast<std::size_t>(stage); }

struct Study {
  kda::Problem problem;
  kda::StageTruths truths;
  kda::StageTensors stages;
  std::size_t chunk = 16;

  explicit Study(const test::ProblemSpec& spec) : problem(test::make_problem(spec)) {
    test::add_loss(problem);
    truths = kda::run_stage_oracle(problem, chunk, 1, kda::Passes::both);
    stages = kda::allocate_stages(problem, chunk, DType::fp32, kda::Passes::both);
    kda::RunOptions options = test::default_options(problem, "chunk", DType::fp32);
    options.chunk_size = chunk;
    options.stages.computed = &stages;
    test::run(problem, "chunk", options);
    kda::run_chunk_backward(problem, options);
  }
  /// Adds 1 to an element of a stage.
  void alter(Stage stage, const kda::ChunkPlace& place, std::size_t row, std::size_t column) {
    const kda::Dimensions d = kda::chunked_dimensions(problem, chunk);
    const std::size_t element = kda::StageLayout(stage, d, false).element(place, row, column);
    tensor::Tensor& tensor = stages[number(stage)];
    tensor.set(element, tensor.value(element) + 1);
  }
  std::optional<explain::Divergence> first(double limit) const {
    return explain::first_divergence({&stages, false}, truths, problem, chunk,
                                     [=](Stage, DType) { return limit; });
  }
};

test::ProblemSpec ragged() {
  test::ProblemSpec spec;
  spec.T = 55, spec.H = spec.HV = 2, spec.K = 12, spec.V = 10, spec.cu_seqlens = {0, 20, 55},
  spec.chunk_size = 16;
  return spec;
}

}  // namespace

TEST_CASE("a healthy run leaves the truth nowhere, and its errors are those of fp32", "[stages]") {
  const Study study(ragged());
  CHECK_FALSE(study.first(200).has_value());
  const auto errors = explain::stage_errors({&study.stages, false}, study.truths, study.problem, 16, 2);
  REQUIRE(errors.size() == kda::stage_count);
  for (const explain::StageError& error : errors) {
    CHECK(error.measures.rms_ratio < 1e-6);
    CHECK(error.measures.mismatched_classes() == 0);
  }
}

TEST_CASE("one altered element of a stage is named: stage, chunk, head, token and channel", "[stages]") {
  for (const Stage stage :
       {Stage::g_cumsum, Stage::Aqk, Stage::Akk_inv, Stage::w, Stage::kg, Stage::h, Stage::v_new, Stage::dAqk,
        Stage::dv_local, Stage::dh, Stage::dv, Stage::dw, Stage::dAkk}) {
    Study study(ragged());
    // The second sequence's second chunk: number 3, tokens 36..51.
    const kda::ChunkPlace place{0, 36, 16, 3, 1};
    const kda::StageLayout layout(stage, kda::chunked_dimensions(study.problem, 16), false);
    tensor::Tensor& tensor = study.stages[number(stage)];
    const std::size_t element = layout.element(place, 9, 4);
    tensor.set(element, tensor.value(element) + 1e-2 * (1 + std::fabs(tensor.value(element))));
    const auto found = study.first(1000);
    REQUIRE(found.has_value());
    CHECK(found->stage == stage);
    CHECK(found->chunk.index == 3);
    CHECK(found->chunk.head == 1);
    CHECK(found->row == 9);
    CHECK(found->column == 4);
  }
}

TEST_CASE("of two altered elements the earlier chunk and the earlier stage come first", "[stages]") {
  Study study(ragged());
  const auto alter = [&](Stage stage, const kda::ChunkPlace& place) { study.alter(stage, place, 1, 0); };
  alter(Stage::g_cumsum, {0, 36, 16, 3, 0});
  alter(Stage::v_new, {0, 16, 4, 1, 1});
  CHECK(study.first(1000)->stage == Stage::v_new);
  alter(Stage::u, {0, 16, 4, 1, 1});
  CHECK(study.first(1000)->stage == Stage::u);
}

TEST_CASE("the backward pass comes after the forward pass, its last chunk first", "[stages]") {
  Study study(ragged());
  const auto alter = [&](Stage stage, const kda::ChunkPlace& place) { study.alter(stage, place, 2, 1); };
  alter(Stage::dAqk, {0, 20, 16, 2, 0});
  alter(Stage::dAkk, {0, 36, 16, 3, 1});
  CHECK(study.first(1000)->stage == Stage::dAkk);
  alter(Stage::dv, {0, 36, 16, 3, 1});
  CHECK(study.first(1000)->stage == Stage::dv);
  alter(Stage::v_new, {0, 52, 3, 4, 1});
  CHECK(study.first(1000)->stage == Stage::v_new);
}

TEST_CASE("what a triangle or a ragged tail leaves undefined is not looked at", "[stages]") {
  Study study(ragged());
  tensor::Tensor& scores = study.stages[number(Stage::Aqk)];
  const kda::StageLayout layout(Stage::Aqk, kda::chunked_dimensions(study.problem, 16), false);
  // Above the diagonal, and the columns beyond a chunk of four rows.
  scores.set(layout.element({0, 0, 16, 0, 0}, 3, 4), std::nan(""));
  scores.set(layout.element({0, 16, 4, 1, 0}, 3, 7), 1e30);
  CHECK_FALSE(study.first(200).has_value());
  for (const auto& error : explain::stage_errors({&study.stages, false}, study.truths, study.problem, 16, 1))
    CHECK(error.measures.mismatched_classes() == 0);
}

TEST_CASE("sums of gates recorded in powers of two are read as such", "[stages]") {
  Study study(ragged());
  tensor::Tensor& sums = study.stages[number(Stage::g_cumsum)];
  for (std::size_t i = 0; i < sums.size(); ++i) sums.set(i, sums.value(i) * 1.4426950408889634);
  CHECK(study.first(200).has_value());
  const auto limit = [](Stage, DType) { return 200.0; };
  CHECK_FALSE(
      explain::first_divergence({&study.stages, true}, study.truths, study.problem, 16, limit).has_value());
}

TEST_CASE("a NaN in a stage is the first divergence", "[stages]") {
  Study study(ragged());
  study.stages[number(Stage::u)].set(7, std::nan(""));
  const auto found = study.first(1e300);
  REQUIRE(found.has_value());
  CHECK(found->stage == Stage::u);
}

}  // namespace stage_errors_tests
