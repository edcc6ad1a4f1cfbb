// Answers that FLA's Triton kernels gave on an H100, replayed in every bit.
#include <map>
#include <string>

#include "fixture/fixture.hpp"
#include "kda/arithmetic/row_layout.hpp"
#include "kda/problem/stages.hpp"
#include "support/captures.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace triton_tests {

using namespace kda_check;
using numeric::DType;
using test::at_least;
using test::Capture;
using test::captures_of;
using test::launch_of;

namespace {

/// Elements that differ from what a group recorded, by tensor; those it has not recorded are left out.
std::map<std::string, std::size_t> differing(const fixture::Fixture& file, const char* group,
                                             const kda::Answer& answer) {
  std::map<std::string, std::size_t> counts;
  for (const tensor::Tensor* const tensor : {&answer.o, &answer.final_state})
    if (const fixture::DatasetInfo* const info = file.expected_named(group)->tensor(tensor->name()))
      counts[tensor->name()] = test::differing_bits(*tensor, file.read(*info));
  return counts;
}

}  // namespace

TEST_CASE("FLA's fused_recurrent_kda is replayed in every bit", "[triton]") {
  std::size_t compared = 0;
  for (const Capture& capture : captures_of("fla_recurrent")) {
    kda::RunOptions options =
        test::default_options(capture.problem, "recurrent", capture.problem.dtype(), {"fla-recurrent"});
    const kda::Answer answer = test::run(capture.problem, "recurrent", options);
    for (const auto& [tensor, count] : differing(capture.file, "fla_recurrent", answer)) {
      CAPTURE(capture.name, tensor);
      CHECK(count == 0);
      ++compared;
    }
  }
  CHECK(compared >= at_least(13, 28));
}

TEST_CASE("FLA's chunk_kda is replayed forwards in every bit, and so is every stage", "[triton]") {
  std::size_t compared = 0, stages = 0;
  for (const Capture& capture : captures_of("fla_chunk")) {
    const kda::Problem& problem = capture.problem;
    kda::RunOptions options =
        test::default_options(problem, "chunk", problem.dtype(), {"fla", launch_of(capture.name)});
    kda::StageTensors told = kda::allocate_stages(problem, options.chunk_size, DType::fp32);
    options.stages.computed = &told;
    const kda::Answer answer = test::run(problem, "chunk", options);
    CAPTURE(capture.name);
    for (const auto& [tensor, count] : differing(capture.file, "fla_chunk", answer)) {
      CAPTURE(tensor);
      CHECK(count == 0);
      ++compared;
    }
    for (const fixture::DatasetInfo& info : capture.file.expected_named("fla_chunk")->stages) {
      const tensor::Tensor recorded = capture.file.read(info);
      for (const kda::StageRow& row : kda::stages()) {
        if (row.name != recorded.name()) continue;
        CAPTURE(row.name);
        const tensor::Tensor& own = told[static_cast<std::size_t>(row.stage)];
        std::size_t count = 0;
        for (std::size_t i = 0; i < own.size(); ++i) {
          // Right of the diagonal FLA leaves what was in memory.
          const std::size_t column = i % own.shape().back();
          const std::size_t token = i / own.shape().back() / problem.dimensions().HV % problem.dimensions().T;
          if (row.lower_triangular() && !problem.packed() && column > token % options.chunk_size) continue;
          if (row.lower_triangular() && problem.packed()) continue;
          count += own.value(i) != recorded.value(i);
        }
        CHECK(count == 0);
        ++stages;
      }
    }
  }
  CHECK(compared >= at_least(13, 28));
  CHECK(stages >= at_least(0, 90));
}

TEST_CASE("Triton hands out the rows of a block as its compiler was seen to", "[triton]") {
  using kda::RowLayout;
  const auto is = [](const RowLayout& layout, std::size_t registers, std::size_t lanes, std::size_t warps) {
    return layout == RowLayout{registers, lanes, warps};
  };
  const DType fp32 = DType::fp32, bf16 = DType::bf16;
  // Of fused_recurrent_kda's state, [K][32] or [32][K], with four warps.
  CHECK(is(kda::recurrent_state_layout({64, 64, false, nullptr, kda::fla_token_program}), 1, 1, 4));
  CHECK(is(kda::recurrent_state_layout({64, 64, false, &fp32, kda::fla_token_program}), 1, 4, 4));
  CHECK(is(kda::recurrent_state_layout({64, 66, false, &fp32, kda::fla_token_program}), 1, 2, 4));
  CHECK(is(kda::recurrent_state_layout({64, 65, false, &fp32, kda::fla_token_program}), 1, 1, 4));
  CHECK(is(kda::recurrent_state_layout({64, 64, false, &bf16, kda::fla_token_program}), 1, 8, 4));
  CHECK(is(kda::recurrent_state_layout({32, 64, true, nullptr, kda::fla_token_program}), 1, 32, 1));
  CHECK(is(kda::recurrent_state_layout({64, 64, true, nullptr, kda::fla_token_program}), 1, 32, 2));
  CHECK(is(kda::recurrent_state_layout({128, 64, true, nullptr, kda::fla_token_program}), 1, 32, 4));
  CHECK(is(kda::recurrent_state_layout({64, 64, true, &fp32, kda::fla_token_program}), 4, 16, 1));
  CHECK(is(kda::recurrent_state_layout({256, 64, true, &fp32, kda::fla_token_program}), 4, 32, 2));
  CHECK(is(kda::recurrent_norm_layout(64, bf16, kda::fla_token_program), 1, 32, 2));
  CHECK(is(kda::recurrent_norm_layout(256, fp32, kda::fla_token_program), 2, 32, 4));
  // Of 32 and fewer channels each half of the lanes has a norm of its own: where its elements stand.
  const auto halves = [](std::size_t K, std::size_t V, bool v_first, const DType* state,
                         const kda::TokenProgram& program = kda::fla_token_program) {
    return kda::recurrent_norm_halves(kda::recurrent_norm_layout(K, DType::fp32, program),
                                      {K, V, v_first, state, program});
  };
  CHECK(halves(32, 48, false, &fp32) == kda::NormHalves{2, 0});
  CHECK(halves(32, 48, false, &bf16) == kda::NormHalves{4, 0});
  CHECK(halves(32, 42, false, &fp32) == kda::NormHalves{1, 0});
  CHECK(halves(32, 48, false, nullptr) == kda::NormHalves{0, 16});
  CHECK(halves(32, 48, true, &fp32) == kda::NormHalves{0, 2});
  CHECK(halves(32, 48, true, nullptr) == kda::NormHalves{16, 0});
  CHECK(halves(24, 48, false, &fp32) == kda::NormHalves{2, 0});
  CHECK(halves(16, 48, false, &fp32) == kda::NormHalves{1, 0});
  CHECK(halves(16, 48, true, &fp32) == kda::NormHalves{0, 2});
  CHECK(halves(32, 64, true, &fp32, {8, 1}) == kda::NormHalves{0, 2});
  CHECK(halves(32, 64, false, &fp32, {8, 1}) == kda::NormHalves{8, 0});
  CHECK(halves(64, 48, false, &fp32) == kda::NormHalves{});
  CHECK(kda::norm_halves({1, 32, 1}, 32) == kda::NormHalves{16, 0});
  CHECK(kda::norm_halves({2, 16, 1}, 32) == kda::NormHalves{});
  // Of chunk_kda's kernels, which are autotuned.
  const auto pairs = kda::pair_layouts(64, fp32);
  CHECK(pairs.size() == 3);
  CHECK(std::ranges::find(pairs, RowLayout{2, 32, 1}) != pairs.end());
  CHECK(kda::pair_layouts(64, bf16).size() == 4);
  CHECK(is(kda::norm_layouts(128, bf16).front(), 8, 16, 1));
  CHECK(is(kda::norm_layouts(64, fp32).front(), 4, 16, 1));
}

TEST_CASE("a launch is read and written in the same words, and what is none is refused", "[triton]") {
  for (const char* const words :
       {"any", "scan:2", "norm:8x16x1", "norm:8x16x1+pairs:4x16x1+substitution:1x8x1+scan:4",
        "wy:32x128x2+intra:8+reverse-scan:2+norm-backward:4x16x1+gate-backward:32"}) {
    kda::Arithmetic arithmetic;
    kda::set_axis(arithmetic, std::string("launch=") + words);
    CHECK_THAT(kda::describe(arithmetic, {.chunk = true}), ContainsSubstring(std::string("launch=") + words));
  }
  for (const char* const wrong : {"",
                                  "scan",
                                  "scan:",
                                  "scan:3",
                                  "scan:128",
                                  "scan:4+",
                                  "scan:4+scan:2",
                                  "norm:8x16x1+scan:4+norm:8x16x1",
                                  "rows:1x2x3",
                                  "norm:8x16",
                                  "norm:8x16x1x1",
                                  "norm:8x64x1",
                                  "norm:8x16x32",
                                  "norm:0x16x1",
                                  "pairs:3x8x1",
                                  "wy:64x64",
                                  "wy:64x48x4",
                                  "wy:64",
                                  "intra:1x2",
                                  "intra:32",
                                  "reverse-scan:128",
                                  "gate-backward:64",
                                  "block",
                                  "block:8",
                                  "block:3x1",
                                  "norm-backward:4"}) {
    CAPTURE(wrong);
    kda::Arithmetic arithmetic;
    CHECK_THROWS_WITH(kda::set_axis(arithmetic, std::string("launch=") + wrong),
                      ContainsSubstring("--arithmetic launch="));
  }
}

TEST_CASE("rows of one element are normalised in Triton's order, too", "[triton]") {
  test::ProblemSpec spec;
  spec.T = 5, spec.K = 1, spec.V = 3, spec.qk_l2norm = true;
  const kda::Problem problem = test::make_problem(spec);
  const test::WholeOracle exact = test::whole_oracle(problem);
  for (const auto& [variant, preset] : {std::pair("chunk", "fla"), std::pair("recurrent", "fla-recurrent")}) {
    CAPTURE(preset);
    kda::RunOptions options = test::default_options(problem, variant, DType::fp32, {preset});
    CHECK(test::rms_ratio(test::run(problem, variant, options).o, exact.o) < 1e-2);
  }
}

}  // namespace triton_tests
