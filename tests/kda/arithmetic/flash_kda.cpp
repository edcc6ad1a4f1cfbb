// FlashKDA on an H100 against the preset that replays it, and each of its words.
#include <algorithm>
#include <string_view>
#include <vector>

#include "fixture/fixture.hpp"
#include "kda/arithmetic/gpu_words.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace flash_kda_tests {

using namespace kda_check;
using namespace kda_check::kda;
using numeric::DType;

namespace {

RunOptions flash_options(const Problem& problem, DType dtype) {
  RunOptions options = test::default_options(problem, "chunk", dtype);
  options.chunk_size = 16;
  set_axis(options.arithmetic, "flash-kda");
  return options;
}

/// What changes when `word` takes the place of the preset's.
struct Changed {
  std::size_t o, final_state;
};
Changed changed_by(const Problem& problem, RunOptions options, std::string_view word) {
  const Answer before = test::run(problem, "chunk", options);
  set_axis(options.arithmetic, word);
  REQUIRE(unsupported(options.arithmetic, options.dtype).empty());
  const Answer after = test::run(problem, "chunk", options);
  return {test::differing_bits(before.o, after.o),
          test::differing_bits(before.final_state, after.final_state)};
}

}  // namespace

TEST_CASE("the preset flash-kda gives FlashKDA's recorded answers in every bit", "[flash]") {
  std::size_t compared = 0;
  for (const std::string& path : test::all_fixture_files()) {
    const fixture::Fixture file = fixture::Fixture::open(path);
    const fixture::ExpectedGroup* const group = file.expected_named("flash_kda");
    if (group == nullptr) continue;
    INFO(path);
    const Problem problem = file.read_problem();
    const Answer answer = test::run(problem, "chunk", flash_options(problem, file.dtype()));
    CHECK(test::differing_bits(answer.o, file.read(*group->tensor("o"))) == 0);
    if (const fixture::DatasetInfo* const state = group->tensor("final_state"); state != nullptr)
      CHECK(test::differing_bits(answer.final_state, file.read(*state)) == 0);
    ++compared;
  }
  CHECK(compared >= 1);
}

TEST_CASE("words of FlashKDA's order leave a chunk what it is", "[flash]") {
  test::ProblemSpec spec;
  spec.T = 70, spec.K = 16, spec.V = 16, spec.gate = Gate::softplus, spec.chunk_size = 16;
  const Problem problem = test::make_problem(spec);
  const test::WholeOracle exact = test::whole_oracle(problem);
  for (const char* const word :
       {"tail=factored",      "gates=log2-each",     "delta=residual",        "scale=q",
        "output=apart",       "update=added",        "special=fast",          "subnormals=flush",
        "tail=factored-late", "decay=reciprocal:16", "beta=columns",          "scale=output",
        "merge=halves",       "special=fast-floor",  "special=fast-division", "special=fast-signed",
        "gates=log2",         "update=transposed",   "reduction=triton:25",   "special=triton",
        "inverse=chains:16",  "delta=chained",       "scale=q-late",          "beta=keys"})
    for (const char* const tail : {"tail=difference", "tail=suffix"}) {
      INFO(word << ' ' << tail);
      RunOptions options = test::default_options(problem, "chunk", DType::fp32);
      options.chunk_size = 16;
      set_axis(options.arithmetic, tail);
      if (word == std::string_view("beta=keys")) set_axis(options.arithmetic, "decay=factored:16");
      set_axis(options.arithmetic, word);
      const Answer answer = test::run(problem, "chunk", options);
      CHECK(test::rms_ratio(answer.o, exact.o) < 3e-6);
      CHECK(test::rms_ratio(answer.final_state, exact.final_state) < 3e-6);
    }
}

TEST_CASE("the state is rounded on entry where initial_state says so", "[flash]") {
  test::ProblemSpec spec;
  spec.T = 1, spec.K = 16, spec.V = 16;
  const Problem problem = test::make_problem(spec);
  RunOptions options = test::default_options(problem, "chunk", DType::fp32);
  const Changed changed = changed_by(problem, options, "storage=bf16@initial_state");
  CHECK(changed.o > 0);
  CHECK(changed.final_state > 0);
}

TEST_CASE("writes that are added apart are rounded apart", "[flash]") {
  test::ProblemSpec spec;
  spec.T = 64, spec.K = 32, spec.V = 16;
  for (const bool v_first : {false, true}) {
    spec.state_v_first = v_first;
    const Problem problem = test::make_problem(spec);
    RunOptions options = test::default_options(problem, "chunk", DType::fp32);
    CHECK(changed_by(problem, options, "update=added").final_state > 0);
    const Changed transposed = changed_by(problem, options, "update=transposed");
    CHECK((transposed.final_state > 0) == v_first);
  }
}

TEST_CASE("flushing takes subnormal numbers of the norm and of the state for zeros, and nothing else",
          "[flash]") {
  test::ProblemSpec spec;
  spec.T = 1, spec.K = 16, spec.V = 16, spec.qk_l2norm = true;
  Problem problem = test::make_problem(spec);
  RunOptions options = test::default_options(problem, "chunk", DType::fp32);
  set_axis(options.arithmetic, "special=fast");
  const auto [o, state] = changed_by(problem, options, "subnormals=flush");
  CHECK(o == 0);
  CHECK(state == 0);
  tensor::Tensor& initial = *problem.initial_state;
  for (std::size_t i = 0; i < initial.size(); ++i) initial.set(i, 1e-39);
  for (std::size_t i = 0; i < problem.v.size(); ++i) problem.v.set(i, 0);
  set_axis(options.arithmetic, "update=added");
  CHECK(changed_by(problem, options, "subnormals=flush").final_state > 0);
  set_axis(options.arithmetic, "subnormals=flush");
  const Answer flushed = test::run(problem, "chunk", options);
  for (std::size_t i = 0; i < flushed.final_state.size(); ++i) CHECK(flushed.final_state.value(i) == 0);
}

}  // namespace flash_kda_tests
