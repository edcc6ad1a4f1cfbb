// Magnitudes and spreads of gradients: what they are made of, and how large they may be.
#include <cmath>

#include "kda/truth/gradient_oracle.hpp"
#include "support/catch.hpp"
#include "support/gradient_problems.hpp"
#include "support/kernel_blocks.hpp"
#include "support/problems.hpp"

namespace gradient_magnitudes_tests {

using namespace kda_check;
using kda::Gradient;
using kda::GradientTruth;
using kda::GradientTruths;
using numeric::DType;
using test::of;
using test::ProblemSpec;

TEST_CASE("magnitudes of gradients are never below the values, nor beyond 1e4 times what is typical",
          "[gradients]") {
  for (const auto& [name, spec] : test::every_option()) {
    const kda::Problem problem = test::problem_with_loss(spec);
    const GradientTruths truths = test::gradient_truths(problem);
    for (const kda::GradientRow& row : kda::gradients()) {
      const GradientTruth& truth = of(truths, row.gradient);
      double size = 0, magnitude = 0;
      INFO(name << ": " << row.name);
      for (std::size_t i = 0; i < truth.hi.size(); ++i) {
        REQUIRE(truth.magnitude[i] >= std::fabs(truth.hi[i]) * (1 - 1e-12));
        if (!truth.chunk_magnitude.empty()) REQUIRE(truth.chunk_magnitude[i] >= truth.magnitude[i]);
        size += truth.hi[i] * truth.hi[i], magnitude += truth.magnitude[i] * truth.magnitude[i];
      }
      if (!truth.hi.empty()) CHECK(std::sqrt(magnitude) <= 1e4 * std::sqrt(size));
    }
  }
}

TEST_CASE("the magnitude of dv is the sum of its absolute terms", "[gradients]") {
  // One token, no dht: dv = beta sum_k k_k scale q_k do.
  ProblemSpec spec;
  spec.T = 1;
  kda::Problem problem = test::problem_with_loss(spec);
  problem.state_gradient.reset();
  const GradientTruths truths = test::gradient_truths(problem);
  const GradientTruth& truth = of(truths, Gradient::dv);
  for (std::size_t v = 0; v < spec.V; ++v) {
    double sum = 0;
    for (std::size_t k = 0; k < spec.K; ++k)
      sum += std::fabs(problem.beta.value(0) * problem.k.value(k) * problem.scale() * problem.q.value(k) *
                       problem.output_gradient->value(v));
    CHECK(truth.magnitude[v] == Approx(sum).epsilon(1e-12));
  }
}

TEST_CASE("the spread of dbeta is the root of the squares of its terms over V", "[gradients]") {
  // One token, no states: dbeta = sum_v r_v v_v, r_v = sum_k k_k scale q_k do_v.
  ProblemSpec spec;
  spec.T = 1, spec.initial_state = false;
  for (const bool is_logit : {false, true}) {
    spec.beta_sigmoid = is_logit;
    kda::Problem problem = test::problem_with_loss(spec);
    problem.state_gradient.reset();
    const GradientTruths truths = test::gradient_truths(problem);
    const GradientTruth& truth = of(truths, Gradient::dbeta);
    double score = 0, terms = 0, squares = 0;
    for (std::size_t k = 0; k < spec.K; ++k) {
      const double term = problem.k.value(k) * problem.scale() * problem.q.value(k);
      score += term, terms += std::fabs(term);
    }
    for (std::size_t v = 0; v < spec.V; ++v) {
      const double product = problem.output_gradient->value(v) * problem.v.value(v);
      squares += std::pow((terms + std::fabs(score)) * product, 2);
    }
    const double sigmoid = 1 / (1 + std::exp(-problem.beta.value(0)));
    CHECK(truth.spread[0] ==
          Approx(std::sqrt(squares) * (is_logit ? sigmoid * (1 - sigmoid) : 1)).epsilon(1e-12));
  }
}

TEST_CASE("magnitudes of gradients do not grow where the delta rule overwrites the same memory",
          "[gradients]") {
  kda::Problem problem = test::exact_problem(3000, 16, 8, DType::fp32);
  test::add_loss(problem, 3);
  problem.state_gradient.reset();
  const GradientTruths truths = test::gradient_truths(problem);
  for (const Gradient gradient : {Gradient::dv, Gradient::dg, Gradient::dinitial_state})
    for (const double magnitude : of(truths, gradient).magnitude) REQUIRE(magnitude < 1e5);
}

TEST_CASE("dg of the first token is exactly zero without an initial state, where the chunk form cancels",
          "[gradients]") {
  ProblemSpec spec;
  spec.initial_state = false, spec.T = 40;
  const GradientTruths truths = test::gradient_truths(test::problem_with_loss(spec), 16);
  const GradientTruth& dg = of(truths, Gradient::dg);
  for (std::size_t k = 0; k < spec.K; ++k) {
    CHECK(dg.hi[k] == 0);
    CHECK(dg.magnitude[k] == 0);
    CHECK(dg.chunk_magnitude[k] > 0);
    CHECK(dg.magnitude[spec.K + k] > 0);
  }
}

TEST_CASE("the chunk magnitude of dg is summed from the end of the chunk", "[gradients]") {
  ProblemSpec spec;
  spec.T = 20;
  const kda::Problem problem = test::problem_with_loss(spec);
  const GradientTruths truths = test::gradient_truths(problem, 8);
  const GradientTruth &dq = of(truths, Gradient::dq), &dk = of(truths, Gradient::dk),
                      &dg = of(truths, Gradient::dg);
  const test::WholeOracle answer = test::whole_oracle(problem);
  for (std::size_t k = 0; k < spec.K; ++k) {
    double of_final_state = 0;
    for (std::size_t v = 0; v < spec.V; ++v) {
      const std::size_t at = k * spec.V + v;
      of_final_state += (answer.state_magnitude[at] + std::fabs(answer.final_state[at].hi)) *
                        std::fabs(problem.state_gradient->value(at));
    }
    for (const auto& [first, end] : {std::pair<std::size_t, std::size_t>{0, 8}, {8, 16}, {16, 20}}) {
      double sum = end == spec.T ? of_final_state : dg.magnitude[end * spec.K + k];
      for (std::size_t t = end; t-- > first;) {
        const std::size_t at = t * spec.K + k;
        sum += std::fabs(problem.q.value(at)) * dq.magnitude[at] +
               std::fabs(problem.k.value(at)) * dk.magnitude[at];
        CHECK(dg.chunk_magnitude[at] == Approx(dg.magnitude[at] + sum).epsilon(1e-12));
      }
    }
  }
}

}  // namespace gradient_magnitudes_tests
