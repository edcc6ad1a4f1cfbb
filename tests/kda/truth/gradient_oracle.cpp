// The gradients' oracle against what knows nothing of its formulas (differences of the forward oracle),
// against the same formulas at 200 bits, and against torch.
#include "kda/truth/gradient_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fixture/fixture.hpp"
#include "support/big_reverse.hpp"
#include "support/catch.hpp"
#include "support/gradient_problems.hpp"
#include "support/gradients.hpp"
#include "support/kernel_blocks.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

namespace gradient_oracle_tests {

using namespace kda_check;
using kda::Gradient;
using kda::GradientTruth;
using kda::GradientTruths;
using numeric::DoubleDouble;
using numeric::DType;
using test::Big;
using test::of;
using test::ProblemSpec;

namespace {

/// The input that a gradient belongs to.
tensor::Tensor& input_of(kda::Problem& problem, Gradient gradient) {
  switch (gradient) {
    case Gradient::dq:
      return problem.q;
    case Gradient::dk:
      return problem.k;
    case Gradient::dv:
      return problem.v;
    case Gradient::dg:
      return problem.g;
    case Gradient::dbeta:
      return problem.beta;
    case Gradient::dinitial_state:
      return *problem.initial_state;
    case Gradient::dA_log:
      return *problem.A_log;
    case Gradient::derase:
      return *problem.erase;
    case Gradient::dwrite:
      return *problem.write;
    case Gradient::ddt_bias:
      break;
  }
  return *problem.dt_bias;
}

DoubleDouble loss(const kda::Problem& problem) {
  const test::WholeOracle answer = test::whole_oracle(problem);
  DoubleDouble sum{0.0};
  for (std::size_t i = 0; i < answer.o.size(); ++i)
    sum = sum + answer.o[i] * problem.output_gradient->value(i);
  for (std::size_t i = 0; i < answer.final_state.size(); ++i)
    sum = sum + answer.final_state[i] * problem.state_gradient->value(i);
  return sum;
}

/// (loss(x + h) - loss(x - h)) / 2 h, the difference being the one that fp64 makes of it.
DoubleDouble slope(kda::Problem& problem, tensor::Tensor& input, std::size_t at, double h) {
  const double x = input.value(at), above = x + h, below = x - h;
  input.set(at, above);
  const DoubleDouble upper = loss(problem);
  input.set(at, below);
  const DoubleDouble lower = loss(problem);
  input.set(at, x);
  return (upper - lower) / DoubleDouble{above - below};
}

/// Two steps, and the error of order h^2 eliminated.
double extrapolated_slope(kda::Problem& problem, tensor::Tensor& input, std::size_t at) {
  const DoubleDouble wide = slope(problem, input, at, 0x1p-18), narrow = slope(problem, input, at, 0x1p-19);
  return ((narrow * 4.0 - wide) / DoubleDouble{3.0}).hi;
}

void check_same(const GradientTruth& a, const GradientTruth& b) {
  CHECK(test::same_bits(a.hi, b.hi));
  CHECK(test::same_bits(a.lo, b.lo));
  CHECK(test::same_bits(a.magnitude, b.magnitude));
  CHECK(test::same_bits(a.chunk_magnitude, b.chunk_magnitude));
}

}  // namespace

TEST_CASE("every gradient is what central differences of the forward oracle say, to 1e-10", "[gradients]") {
  std::vector<test::NamedSpec> all = test::every_option();
  for (const test::NamedSpec& relative : test::relatives()) all.push_back(relative);
  for (const auto& [name, narrow] : all) {
    ProblemSpec spec = narrow;
    spec.dtype = DType::fp64;
    kda::Problem problem = test::problem_with_loss(spec);
    if (problem.A_log) problem.A_log = problem.A_log->converted_to(DType::fp64);
    if (problem.dt_bias) problem.dt_bias = problem.dt_bias->converted_to(DType::fp64);
    const GradientTruths truths = test::gradient_truths(problem);
    test::Random random(5);
    for (const kda::GradientRow& row : kda::gradients()) {
      if (!kda::has_gradient(problem, row.gradient)) continue;
      const GradientTruth& truth = of(truths, row.gradient);
      tensor::Tensor& input = input_of(problem, row.gradient);
      REQUIRE(truth.hi.size() == input.size());
      INFO(name << ": " << row.name);
      for (std::size_t i = 0; i < std::min<std::size_t>(200, input.size()); ++i) {
        const std::size_t at = input.size() <= 200 ? i : random.below(input.size());
        INFO(at);
        const double measured = extrapolated_slope(problem, input, at);
        REQUIRE(std::fabs(truth.hi[at] - measured) <= 1e-10 * std::fabs(measured));
      }
    }
  }
}

TEST_CASE("the gradients agree with MPFR at 200 bits to 1e-27 of the magnitude", "[gradients]") {
  std::vector<test::NamedSpec> specs = test::every_option();
  specs.emplace_back("beyond one block", ProblemSpec{});
  specs.back().second.T = 70, specs.back().second.gate_size = 0.05;
  for (const auto& [name, spec] : specs) {
    const kda::Problem problem = test::problem_with_loss(spec);
    const GradientTruths truths = test::gradient_truths(problem);
    test::BigReverse reverse(problem);
    for (const kda::GradientRow& row : kda::gradients()) {
      const GradientTruth& truth = of(truths, row.gradient);
      INFO(name << ": " << row.name);
      CHECK(test::worst(test::values_of(truth), reverse.of(row.gradient), truth.magnitude) <= 1e-27);
    }
  }
}

TEST_CASE("the fp64 oracle's gradients are as exact as fp64 allows", "[gradients]") {
  for (const auto& [name, spec] : test::every_option()) {
    const kda::Problem problem = test::problem_with_loss(spec);
    const GradientTruths got = test::gradient_truths(problem, 64, kda::OraclePrecision::fp64);
    test::BigReverse reverse(problem);
    for (const kda::GradientRow& row : kda::gradients()) {
      INFO(name << ": " << row.name);
      CHECK(test::worst(test::values_of(of(got, row.gradient)), reverse.of(row.gradient),
                        of(got, row.gradient).magnitude) <= 32 * 0x1p-53);
    }
  }
}

TEST_CASE("the gradients agree with torch's in fp64 to 1e-12, all that the fixtures hold", "[gradients]") {
  std::size_t compared = 0;
  for (const std::string& path : test::all_fixture_files()) {
    const fixture::Fixture file = fixture::Fixture::open(path);
    const kda::Problem problem = file.read_problem();
    const fixture::ExpectedGroup* const torch = file.expected_named("torch_fp64");
    if (!problem.has_loss() || torch == nullptr) continue;
    const GradientTruths truths = test::gradient_truths(problem);
    for (const kda::GradientRow& row : kda::gradients()) {
      INFO(file.name() << ": " << row.name);
      const auto* const recorded = torch->tensor(row.name);
      REQUIRE((recorded != nullptr) == kda::has_gradient(problem, row.gradient));
      if (recorded == nullptr) continue;
      CHECK(test::rms_ratio(file.read(*recorded), test::values_of(of(truths, row.gradient))) <= 1e-12);
      ++compared;
    }
  }
  CHECK(compared >= 14);
}

TEST_CASE("the gradient of an empty sequence's initial state is dht", "[gradients]") {
  ProblemSpec spec;
  spec.T = 6, spec.cu_seqlens = {0, 0, 6, 6}, spec.state_v_first = true;
  const kda::Problem problem = test::problem_with_loss(spec);
  const GradientTruths truths = test::gradient_truths(problem);
  const GradientTruth& state = of(truths, Gradient::dinitial_state);
  const std::size_t size = spec.K * spec.V;
  for (const std::size_t sequence : {0, 2})
    for (std::size_t i = sequence * size; i < (sequence + 1) * size; ++i)
      CHECK(state.hi[i] == problem.state_gradient->value(i));
}

TEST_CASE("gradients are linear in do and dht, and what is missing counts as zero", "[gradients]") {
  const kda::Problem problem = test::problem_with_loss(test::every_option()[2].second);
  kda::Problem output_only = kda::clone(problem), state_only = kda::clone(problem);
  output_only.state_gradient.reset(), state_only.output_gradient.reset();
  const GradientTruths both = test::gradient_truths(problem), output = test::gradient_truths(output_only),
                       state = test::gradient_truths(state_only);
  for (const kda::GradientRow& row : kda::gradients()) {
    INFO(row.name);
    const std::vector<DoubleDouble> a = test::values_of(of(output, row.gradient)),
                                    b = test::values_of(of(state, row.gradient)),
                                    sum = test::values_of(of(both, row.gradient));
    for (std::size_t i = 0; i < sum.size(); ++i)
      REQUIRE(std::fabs((a[i] + b[i] - sum[i]).hi) <= 1e-27 * of(both, row.gradient).magnitude[i]);
  }
}

TEST_CASE("a gate that forgets everything stops every gradient and makes none NaN", "[gradients]") {
  for (const kda::Gate gate : {kda::Gate::none, kda::Gate::softplus}) {
    ProblemSpec spec;
    spec.gate = gate;
    kda::Problem problem = test::problem_with_loss(spec);
    for (std::size_t k = 0; k < spec.K; ++k)
      problem.g.set(5 * spec.K + k, gate == kda::Gate::none ? -HUGE_VAL : 1e5);
    for (std::size_t i = 0; i < 5 * spec.V; ++i) problem.output_gradient->set(i, 0.0);
    const GradientTruths truths = test::gradient_truths(problem);
    for (const kda::GradientRow& row : kda::gradients())
      for (const double value : of(truths, row.gradient).hi) REQUIRE(std::isfinite(value));
    for (std::size_t at = 0; at < 6 * spec.K; ++at) CHECK(of(truths, Gradient::dg).hi[at] == 0);
    for (const double value : of(truths, Gradient::dinitial_state).hi) CHECK(value == 0);
  }
}

TEST_CASE("the gradients' oracle gives the same bits on any number of threads", "[gradients]") {
  ProblemSpec spec = test::every_option()[2].second;
  spec.T = 70, spec.K = 20, spec.V = 35;
  const kda::Problem problem = test::problem_with_loss(spec);
  constexpr auto precision = kda::OraclePrecision::double_double;
  const GradientTruths one = test::gradient_truths(problem, 64, precision, 1),
                       three = test::gradient_truths(problem, 64, precision, 3);
  for (std::size_t i = 0; i < kda::gradient_count; ++i) check_same(one[i], three[i]);
}

}  // namespace gradient_oracle_tests
