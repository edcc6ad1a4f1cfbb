// Gradients that FLA's Triton kernels gave on an H100, replayed in every bit.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kda/arithmetic/row_layout.hpp"
#include "kda/head/column_sums.hpp"
#include "kda/truth/gradient_oracle.hpp"
#include "support/captures.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/loss.hpp"

namespace triton_backward_tests {

using namespace kda_check;
using numeric::DType;
using test::at_least;
using test::Capture;
using test::ProblemSpec;

namespace {

/// Gradients of a capture under fla and more words that differ in some bit, of those that are compared.
struct Compared {
  std::size_t gradients = 0, differing = 0;
};
Compared compared(const Capture& capture) {
  kda::RunOptions options = test::default_options(capture.problem, "chunk", capture.problem.dtype(),
                                                  {"fla", test::launch_of(capture.name)});
  const kda::GradientTensors got = kda::variant_named("chunk").run_backward(capture.problem, options);
  Compared result;
  for (const kda::GradientRow& row : kda::gradients()) {
    const tensor::Tensor& tensor = got[static_cast<std::size_t>(row.gradient)];
    const fixture::DatasetInfo* const info = capture.file.expected_named("fla_chunk")->tensor(row.name);
    if (tensor.empty() || info == nullptr) continue;
    // One of two heads: in which order PyTorch adds up a column depends on how many there are.
    if (row.gradient == kda::Gradient::ddt_bias && capture.name == "fla_bf16_softplus_backward") continue;
    ++result.gradients;
    result.differing += test::differing_bits(tensor, capture.file.read(*info)) > 0;
  }
  return result;
}

std::vector<Capture> with_gradients(std::size_t longest) {
  std::vector<Capture> captures;
  for (Capture& capture : test::captures_of("fla_chunk"))
    if (capture.file.expected_named("fla_chunk")->tensor("dq") != nullptr &&
        capture.problem.dimensions().T <= longest)
      captures.push_back(std::move(capture));
  return captures;
}

}  // namespace

TEST_CASE("FLA's chunk_kda is replayed backwards in every bit", "[triton][backward]") {
  std::size_t gradients = 0;
  for (const Capture& capture : with_gradients(10000)) {
    CAPTURE(capture.name);
    const Compared result = compared(capture);
    CHECK(result.differing == 0);
    gradients += result.gradients;
  }
  CHECK(gradients >= at_least(27, 90));
}

TEST_CASE("Triton's order leaves gradients what they are, whatever the shape, options and formulation",
          "[triton][backward]") {
  std::vector<ProblemSpec> specs = test::few_specs();
  specs[1].K = 70, specs[1].HV = 12;
  specs[2] = test::packed_spec();
  specs[2].beta_sigmoid = specs[2].allow_neg_eigval = specs[2].qk_l2norm = true;
  specs[2].gate = kda::Gate::softplus, specs[2].initial_state = false, specs[2].V = 130;
  for (const ProblemSpec& spec : specs) {
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    const kda::GradientTruths truths = test::gradient_truths(problem);
    for (const char* const word :
         {"decay=anchor-pair", "decay=anchor-mid", "decay=pair", "decay=anchor-first:16", "launch=wy:32x64x2",
          "launch=intra:8+reverse-scan:2+gate-backward:32"})
      for (const std::size_t chunk_size : {16, 64}) {
        kda::RunOptions options = test::default_options(problem, "chunk", DType::fp32);
        options.chunk_size = chunk_size;
        kda::set_axis(options.arithmetic, word);
        const kda::GradientTensors plain = kda::run_chunk_backward(problem, options);
        kda::set_axis(options.arithmetic, "reduction=triton:25");
        const kda::GradientTensors got = kda::run_chunk_backward(problem, options);
        CHECK(test::differing(plain, got) > 0);
        for (std::size_t g = 0; g < kda::gradient_count; ++g) {
          if (got[g].empty()) continue;
          CAPTURE(word, chunk_size, got[g].name(), spec.K);
          // Sums of a tensor core are cut, not rounded: a unit a group instead of half a unit.
          CHECK(test::rms_ratio(got[g], truths[g]) <= 8 * test::rms_ratio(plain[g], truths[g]));
        }
      }
  }
}

TEST_CASE("gradients in Triton's order do not depend on threads", "[triton][backward]") {
  ProblemSpec spec = test::packed_spec();
  spec.H = 3, spec.HV = 6, spec.gate = kda::Gate::softplus, spec.qk_l2norm = true;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  kda::RunOptions options = test::default_options(problem, "chunk", DType::bf16, {"fla"});
  const kda::GradientTensors one = kda::run_chunk_backward(problem, options);
  options.threads = 5;
  CHECK(test::differing(one, kda::run_chunk_backward(problem, options)) == 0);
}

TEST_CASE("Triton hands out the tiles of the backward kernels as its compiler was seen to",
          "[triton][backward]") {
  using kda::RowLayout;
  const auto layouts = [](std::size_t K, std::size_t V, std::size_t rows, DType dtype, bool v_first,
                          const kda::WyBlock& block) {
    return kda::gradient_layouts({K, V, rows, dtype, v_first, true}, block, 1);
  };
  const kda::GradientLayouts usual = layouts(64, 64, 64, DType::fp32, false, {64, 64, 4});
  CHECK(usual.states == RowLayout{4, 16, 1});
  CHECK(usual.value_rows == RowLayout{2, 4, 1});
  CHECK(usual.row_warps == 4);
  CHECK(usual.pair_rows == RowLayout{4, 8, 1});
  CHECK_FALSE(usual.fuses_states);
  CHECK(layouts(128, 128, 64, DType::bf16, true, {64, 64, 4}).states == RowLayout{1, 4, 4});
  CHECK(layouts(64, 64, 64, DType::bf16, false, {64, 64, 4}).states == RowLayout{8, 8, 1});
  CHECK(layouts(64, 64, 64, DType::bf16, false, {64, 64, 4}).fuses_states);
  CHECK(layouts(64, 64, 64, DType::bf16, false, {64, 64, 4}).pair_rows == RowLayout{8, 4, 1});
  // Wide tiles in a loop over K have their warps side by side; four warps have the rows of 64 all the same.
  CHECK(layouts(64, 64, 64, DType::bf16, false, {32, 128, 2}).value_rows == RowLayout{2, 4, 2});
  CHECK(layouts(64, 64, 64, DType::bf16, false, {64, 128, 2}).value_rows == RowLayout{2, 4, 1});
  CHECK(layouts(128, 64, 32, DType::bf16, false, {64, 64, 4}).key_rows == RowLayout{2, 4, 4});
  CHECK(layouts(128, 64, 32, DType::bf16, false, {64, 64, 4}).row_warps == 1);
  CHECK(layouts(128, 64, 64, DType::bf16, false, {64, 128, 4}).value_rows == RowLayout{2, 4, 1});
  CHECK(layouts(32, 100, 32, DType::bf16, false, {32, 64, 2}).value_rows == RowLayout{2, 4, 2});
  CHECK(layouts(32, 100, 32, DType::bf16, false, {32, 64, 2}).row_warps == 1);
  CHECK(layouts(33, 64, 64, DType::bf16, true, {64, 64, 4}).states.lanes == 4);
  CHECK(layouts(16, 64, 64, DType::bf16, false, {64, 64, 4}).pair_rows == RowLayout{8, 2, 1});
}

TEST_CASE("sums over rows are PyTorch's: four running sums of a thread, then threads", "[triton][backward]") {
  std::mt19937 random(7);
  const auto matrix = [&](std::size_t rows, std::size_t columns) {
    std::vector<float> elements(rows * columns);
    for (float& x : elements) x = std::uniform_real_distribution<float>(-1, 1)(random);
    return elements;
  };
  // 8 rows of 2 columns are one thread's.
  const std::vector<float> few = matrix(8, 2), of_few = kda::torch_column_sums(few, 8, 2);
  for (std::size_t c = 0; c < 2; ++c) {
    const auto at = [&](std::size_t row) { return few[row * 2 + c]; };
    CHECK(of_few[c] == (((at(0) + at(4)) + (at(1) + at(5))) + (at(2) + at(6))) + (at(3) + at(7)));
  }
  // 200 rows of 128 columns are four threads', y and y + 2 first.
  const std::vector<float> many = matrix(200, 128), of_many = kda::torch_column_sums(many, 200, 128);
  for (std::size_t c = 0; c < 128; ++c) {
    float threads[4];
    for (std::size_t y = 0; y < 4; ++y) {
      float sums[4] = {};
      for (std::size_t i = 0; i < 50; ++i) sums[i % 4] += many[(y + 4 * i) * 128 + c];
      threads[y] = ((sums[0] + sums[1]) + sums[2]) + sums[3];
    }
    CHECK(of_many[c] == (threads[0] + threads[2]) + (threads[1] + threads[3]));
  }
  // Beyond a thousand rows blocks share them, and add up to the same but for roundings.
  const std::vector<float> all = matrix(9000, 4), of_all = kda::torch_column_sums(all, 9000, 4);
  for (std::size_t c = 0; c < 4; ++c) {
    double exact = 0;
    for (std::size_t row = 0; row < 9000; ++row) exact += all[row * 4 + c];
    CHECK(std::abs(of_all[c] - exact) < 1e-3);
  }
}

}  // namespace triton_backward_tests
