// Words of kernels that decode, of vLLM, SGLang and llama.cpp. Recorded answers are in
// tests/engine/captures.cpp.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "kda/arithmetic/gpu_words.hpp"
#include "kda/arithmetic/presets.hpp"
#include "kda/arithmetic/row_layout.hpp"
#include "numeric/h100.hpp"
#include "support/catch.hpp"
#include "support/kernel_blocks.hpp"
#include "support/problems.hpp"

namespace decode_tests {

using namespace kda_check;
using namespace kda_check::kda;
using numeric::DType;

namespace {

Answer answer_of(const Problem& problem, std::string_view words) {
  RunOptions options = test::default_options(problem, "recurrent", DType::fp32);
  for (std::size_t begin = 0; begin <= words.size();) {
    const std::size_t end = std::min(words.find(',', begin), words.size());
    set_axis(options.arithmetic, words.substr(begin, end - begin));
    begin = end + 1;
  }
  return test::run(problem, "recurrent", options);
}

test::ProblemSpec spec_of(std::size_t K, std::size_t T) {
  test::ProblemSpec spec;
  spec.T = T, spec.K = K, spec.V = 6, spec.state_v_first = true;
  return spec;
}

}  // namespace

TEST_CASE("a block of a token form has the layouts that Triton's compiler was seen to give it", "[decode]") {
  const DType fp32 = DType::fp32, bf16 = DType::bf16;
  const auto is = [](const RowLayout& layout, std::size_t registers, std::size_t lanes) {
    return layout == RowLayout{registers, lanes, 1};
  };
  CHECK(is(recurrent_state_layout({128, 128, true, &fp32, {8, 1}}), 4, 32));
  CHECK(is(recurrent_state_layout({128, 128, true, &bf16, {4, 1}}), 8, 16));
  CHECK(is(recurrent_state_layout({128, 128, true, &bf16, {32, 1}}), 8, 16));
  CHECK(is(recurrent_state_layout({64, 64, true, &fp32, {8, 1}}), 4, 16));
  CHECK(is(recurrent_norm_layout(128, bf16, {8, 1}), 4, 32));
  CHECK(recurrent_norm_layout(128, bf16, {32, 4}) == RowLayout{1, 32, 4});
}

TEST_CASE("without an initial state a block of a pool loads one of zeros", "[decode]") {
  test::ProblemSpec spec = spec_of(64, 3);
  spec.gate = Gate::softplus, spec.qk_l2norm = spec.beta_sigmoid = true;
  Problem with = test::make_problem(spec);
  for (std::size_t e = 0; e < with.initial_state->size(); ++e) with.initial_state->set(e, 0);
  Problem without = clone(with);
  without.initial_state.reset();
  const Answer a = answer_of(with, "vllm-decode"), b = answer_of(without, "vllm-decode");
  CHECK(test::differing_bits(a.o, b.o) == 0);
  CHECK(test::differing_bits(a.final_state, b.final_state) == 0);
}

TEST_CASE("token forms that flush take subnormal numbers of the state for zeros", "[decode]") {
  Problem problem = test::make_problem(spec_of(16, 1));
  for (std::size_t e = 0; e < problem.initial_state->size(); ++e) problem.initial_state->set(e, 1e-39);
  for (std::size_t e = 0; e < problem.v.size(); ++e) problem.v.set(e, 0);
  for (const char* const update : {"chained", "decay-fused"})
    for (const char* const variant : {"recurrent", "naive"}) {
      RunOptions options = test::default_options(problem, variant, DType::fp32);
      set_axis(options.arithmetic, std::string("update=") + update);
      const auto zeros = [&] {
        const Answer answer = test::run(problem, variant, options);
        std::size_t count = 0;
        for (std::size_t e = 0; e < answer.final_state.size(); ++e) count += answer.final_state.value(e) == 0;
        return count;
      };
      CHECK(zeros() == 0);
      set_axis(options.arithmetic, "subnormals=flush");
      CHECK(zeros() == problem.initial_state->size());
    }
}

TEST_CASE("scale behind the output and decay fused onto a write are roundings of every form", "[decode]") {
  test::ProblemSpec spec = spec_of(40, 70);
  spec.chunk_size = 16;
  const Problem problem = test::make_problem(spec);
  const test::WholeOracle exact = test::whole_oracle(problem);
  for (const char* const variant : {"naive", "recurrent", "chunk"})
    for (const char* const word : {"scale=output", "update=decay-fused"}) {
      INFO(variant << ' ' << word);
      RunOptions options = test::default_options(problem, variant, DType::fp32);
      options.arithmetic.contraction = Contraction::fused;
      const Answer before = test::run(problem, variant, options);
      set_axis(options.arithmetic, word);
      const Answer after = test::run(problem, variant, options);
      CHECK(test::differing_bits(before.o, after.o) > 0);
      CHECK(test::rms_ratio(after.o, exact.o) < 3e-6);
      CHECK(test::rms_ratio(after.final_state, exact.final_state) < 3e-6);
    }
}

TEST_CASE("lanes-paired adds up the norm in pairs, rows of any length", "[decode]") {
  test::Random random(31);
  Arithmetic arithmetic;
  set_axis(arithmetic, "special=fast");
  set_axis(arithmetic, "reduction=lanes-paired:25");
  Operations operations = operations_of(arithmetic);
  const auto folded = [](std::vector<float> sums) {
    for (std::size_t half = sums.size() / 2; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    return sums[0];
  };

  // A lane of a long row has more than a thousand pairs.
  constexpr std::size_t long_K = 70001, of_lane = 4096;
  const std::vector<float> long_row = test::numbers<float>(random, long_K, -1, 1);
  std::vector<float> normalised = long_row, of_lanes(32);
  operations.norm = paired_norm_layout(long_K);
  kernels<float>().normalise({1, long_K, long_K, normalised.data(), false, operations});
  for (std::size_t lane = 0; lane < of_lanes.size(); ++lane) {
    std::vector<float> sums;
    for (std::size_t k = lane * of_lane; k < std::min(long_K, (lane + 1) * of_lane); k += 2)
      sums.push_back(k + 1 < long_K ? std::fma(long_row[k], long_row[k], long_row[k + 1] * long_row[k + 1])
                                    : long_row[k] * long_row[k]);
    while (sums.size() > 1) {
      for (std::size_t i = 0; i + 1 < sums.size(); i += 2) sums[i / 2] = sums[i] + sums[i + 1];
      if (sums.size() % 2 == 1) sums[sums.size() / 2] = sums.back();
      sums.resize((sums.size() + 1) / 2);
    }
    of_lanes[lane] = sums.empty() ? 0 : sums[0];
  }
  const float of_long_row = numeric::h100::rsqrt_ftz(folded(of_lanes) + 1e-6F);
  for (std::size_t k = 0; k < long_K; ++k) REQUIRE(normalised[k] == long_row[k] * of_long_row);
}

}  // namespace decode_tests
