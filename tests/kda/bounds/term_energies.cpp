// Energies of terms with random signs, against those of answers to random problems.
#include "kda/bounds/term_energies.hpp"

#include <cmath>
#include <map>
#include <string>

#include "kda/truth/gradient_oracle.hpp"
#include "support/catch.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"

namespace term_energies_tests {

using namespace kda_check;
using test::ProblemSpec;

namespace {

double energy(const numeric::ProductSum& sum) { return sum.root() * sum.root(); }

double energy_of(const tensor::Tensor& tensor) {
  double sum = 0;
  for (std::size_t i = 0; i < tensor.size(); ++i) sum += tensor.value(i) * tensor.value(i);
  return sum;
}

kda::Problem with_scaled(const kda::Problem& problem, double of_state, double of_gradient) {
  kda::Problem scaled = kda::clone(problem);
  const auto scale = [](tensor::Tensor& tensor, double factor) {
    tensor = tensor.converted_to(numeric::DType::fp64);
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor.set(i, tensor.value(i) * factor);
  };
  scale(scaled.v, of_state);
  scaled.q = scaled.q.converted_to(numeric::DType::fp64),
  scaled.k = scaled.k.converted_to(numeric::DType::fp64);
  if (scaled.initial_state) scale(*scaled.initial_state, of_state);
  if (scaled.output_gradient) scale(*scaled.output_gradient, of_gradient);
  if (scaled.state_gradient) scale(*scaled.state_gradient, of_gradient);
  scaled.validate();
  return scaled;
}

}  // namespace

TEST_CASE("the energies of terms are what answers to random problems have on average", "[limits]") {
  ProblemSpec spec;
  spec.T = 24, spec.H = 2, spec.HV = 4, spec.K = 16, spec.V = 12;
  const std::vector<const char*> names{"o", "final_state", "dq", "dk", "dv", "dg", "dbeta", "dinitial_state"};
  std::map<std::string, double> found, expected;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const kda::Problem problem = test::with_loss(test::make_problem(spec, seed), seed);
    const kda::TermEnergies energies = kda::term_energies(problem, kda::Pass::backward, 64, 2);
    for (const kda::Pass pass : kda::every_pass)
      for (const auto& [name, tensor] :
           kda::run_pass(pass, kda::variant_named("recurrent"), problem,
                         test::default_options(problem, "recurrent", numeric::DType::fp64)))
        if (const kda::TermEnergy* const energy_of_terms = energies.of(name))
          found[name] += energy_of(tensor), expected[name] += energy(energy_of_terms->terms);
  }
  for (const char* const name : names) {
    INFO(name);
    CHECK(expected[name] / found[name] == Approx(1).epsilon(0.15));
  }
}

TEST_CASE("energies follow the scale of a problem beyond the range of their squares", "[limits]") {
  ProblemSpec spec;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  const kda::TermEnergies usual = kda::term_energies(problem, kda::Pass::backward, 64, 1);
  for (const double scale : {0x1p-600, 0x1p600}) {
    const kda::TermEnergies other =
        kda::term_energies(with_scaled(problem, scale, 1), kda::Pass::backward, 64, 1);
    for (const char* const name : {"o", "final_state", "dq", "dk", "dg", "dbeta"}) {
      INFO(name << " times " << scale);
      CHECK(other.of(name)->terms.root() == Approx(scale * usual.of(name)->terms.root()));
      CHECK(other.of(name)->rounding.root() == Approx(scale * usual.of(name)->rounding.root()));
    }
    CHECK(other.of("dv")->terms.root() == usual.of("dv")->terms.root());
  }
}

TEST_CASE("of one token without a state, o is one sum of K terms", "[limits]") {
  ProblemSpec spec;
  spec.T = 1, spec.initial_state = false;
  const kda::Problem problem = test::make_problem(spec);
  const kda::TermEnergies energies = kda::term_energies(problem, kda::Pass::forward, 64, 1);
  double products = 0, values = 0;
  for (std::size_t k = 0; k < spec.K; ++k) {
    const double term = problem.scale() * problem.q.value(k) * problem.k.value(k) * problem.beta.value(0);
    products += term * term;
  }
  for (std::size_t v = 0; v < spec.V; ++v) values += problem.v.value(v) * problem.v.value(v);
  CHECK(energy(energies.o.terms) == Approx(products * values));
  CHECK(energies.final_state.rounding.is_zero());
}

TEST_CASE("a tensor that a problem does not have has no energy, and threads change nothing", "[limits]") {
  const kda::Problem problem =
      test::with_loss(test::make_problem({.H = 2, .HV = 4, .cu_seqlens = {0, 7, 20}}));
  const kda::TermEnergies forward = kda::term_energies(problem, kda::Pass::forward, 64, 1);
  CHECK(forward.of("dq")->terms.is_zero());
  CHECK(forward.of("dA_log") == nullptr);
  const kda::TermEnergies one = kda::term_energies(problem, kda::Pass::backward, 64, 1),
                          three = kda::term_energies(problem, kda::Pass::backward, 64, 3);
  for (const char* const name : {"o", "final_state", "dq", "dk", "dv", "dg", "dbeta", "dinitial_state"}) {
    CHECK(one.of(name)->terms.root() == three.of(name)->terms.root());
    CHECK(one.of(name)->rounding.root() == three.of(name)->rounding.root());
  }
}

TEST_CASE("magnitudes of gradients do not collapse where a gradient of the state cancels", "[gradients]") {
  ProblemSpec spec;
  spec.T = 2, spec.K = 2, spec.V = 1, spec.dtype = numeric::DType::fp64;
  kda::Problem problem = test::with_loss(test::make_problem(spec));
  const auto fill = [](tensor::Tensor& tensor, std::initializer_list<double> values) {
    std::size_t i = 0;
    for (const double value : values) tensor.set(i++, value);
  };
  fill(problem.g, {0, 0, 0, 0});
  fill(problem.q, {-1, -1, 1 + 0x1p-20, 1 + 0x1p-20});
  fill(*problem.output_gradient, {1, 1});
  fill(*problem.state_gradient, {0, 0});
  // Reflects: each row of the gradient becomes the other one, all of whose terms cancel.
  const double half = std::sqrt(0.5);
  fill(problem.k, {half, half, 0, 0});
  problem.beta = problem.beta.converted_to(numeric::DType::fp64);
  fill(problem.beta, {2, 0});
  const kda::GradientTruths truths =
      kda::run_gradient_oracle(problem, kda::OraclePrecision::double_double, 64, 1);
  const kda::GradientTruth& truth = truths[static_cast<std::size_t>(kda::Gradient::dinitial_state)];
  for (std::size_t k = 0; k < 2; ++k) {
    CHECK(std::fabs(truth.hi[k]) < 1e-5);
    CHECK(truth.magnitude[k] > 0.5);
  }
}

}  // namespace term_energies_tests
