// What the presets pallas and sglang-jax need beside words. They themselves are held to recorded answers
// (tests/engine/captures.cpp).
#include <algorithm>
#include <cmath>
#include <vector>

#include "numeric/xla.hpp"
#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

namespace interpreted_kernels_tests {

using namespace kda_check;
using namespace kda_check::kda;
using numeric::DType;

TEST_CASE("a chunk that is not full ends where one that is filled up does", "[interpreted]") {
  // Sums of 40 gates: those that end at the 64th row are added up in another order than those at the 40th.
  test::ProblemSpec spec;
  spec.T = 40, spec.K = 40, spec.V = 16, spec.chunk_size = 64;
  const Problem problem = test::make_problem(spec);
  RunOptions options = test::default_options(problem, "chunk", DType::fp32);
  set_axis(options.arithmetic, "sglang-jax");
  const Answer filled = test::run(problem, "chunk", options);
  set_axis(options.arithmetic, "launch=any");
  const Answer in_runs = test::run(problem, "chunk", options);
  set_axis(options.arithmetic, "ideal");
  const Answer ideal = test::run(problem, "chunk", options);
  CHECK(test::differing_bits(filled.final_state, in_runs.final_state) > 0);
  for (std::size_t e = 0; e < ideal.final_state.size(); ++e)
    REQUIRE(std::fabs(filled.final_state.value(e) - ideal.final_state.value(e)) < 1e-5);
}

TEST_CASE("XLA's exponential is that of its polynomial, and flushes", "[interpreted][exponential]") {
  CHECK(numeric::xla::exp(-87.4F) == 0);
  CHECK(numeric::xla::exp(-87.3F) > 0);
  CHECK(numeric::xla::exp2(-1.0F) == 0.5F);
  test::Random random(4);
  double worst = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto x = static_cast<float>(random.uniform(-87.0, 88.5));
    const double truth = exp(test::Big(static_cast<double>(x))).to_double(),
                 error = std::fabs(static_cast<double>(numeric::xla::exp(x)) - truth);
    worst = std::max(worst, error / std::ldexp(1.0, std::ilogb(truth) - 23));
  }
  INFO(worst << " ULP");
  CHECK(worst < 2);
  CHECK(worst > 0.5);
}

}  // namespace interpreted_kernels_tests
