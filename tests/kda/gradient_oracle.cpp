// The gradients' oracle against what knows nothing of its formulas (differences of the forward oracle),
// against the same formulas at 200 bits, and against torch.
#include "kda/gradient_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fixture/fixture.hpp"
#include "support/big_reverse.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/kernel_blocks.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

using namespace kda_check;
using kda::Gradient;
using kda::GradientTruth;
using kda::GradientTruths;
using numeric::DoubleDouble;
using numeric::DType;
using test::Big;
using test::ProblemSpec;

namespace {

kda::Problem problem_with_loss(const ProblemSpec& spec, std::uint64_t seed = 1) {
  return test::with_loss(test::make_problem(spec, seed), seed);
}

using NamedSpec = std::pair<const char*, ProblemSpec>;
std::vector<NamedSpec> every_option() {
  std::vector<NamedSpec> specs;
  const auto add = [&](const char* name, auto change) {
    ProblemSpec spec;
    spec.T = 9, spec.K = 5, spec.V = 3;
    change(spec);
    specs.emplace_back(name, spec);
  };
  add("plain", [](ProblemSpec&) {});
  add("packed, one sequence empty, one of one token, and no initial state", [](ProblemSpec& s) {
    s.T = 12, s.cu_seqlens = {0, 5, 5, 6, 12}, s.initial_state = false;
  });
  add("l2 norm, lower bound, sigmoid, GVA, V-first, batch", [](ProblemSpec& s) {
    s.B = 2, s.H = 2, s.HV = 4, s.T = 5, s.qk_l2norm = s.beta_sigmoid = s.state_v_first = true;
    s.gate = kda::Gate::lower_bound;
  });
  add("softplus, negative eigenvalues, packed", [](ProblemSpec& s) {
    s.gate = kda::Gate::softplus, s.beta_sigmoid = s.allow_neg_eigval = true;
    s.cu_seqlens = {0, 4, 4, 9}, s.K = 9, s.V = 10;
  });
  add("lower bound without A_log", [](ProblemSpec& s) { s.gate = kda::Gate::lower_bound, s.A_log = false; });
  add("softplus without dt_bias", [](ProblemSpec& s) { s.gate = kda::Gate::softplus, s.dt_bias = false; });
  return specs;
}

/// KDA's relatives, which BigReverse does not know.
std::vector<NamedSpec> relatives() {
  std::vector<NamedSpec> specs;
  for (const bool scalar_decay : {false, true})
    for (const kda::Strength strength : {kda::Strength::head, kda::Strength::value, kda::Strength::gates}) {
      ProblemSpec spec;
      spec.H = 2, spec.HV = 4, spec.T = 6, spec.K = 5, spec.V = 3;
      spec.scalar_decay = scalar_decay, spec.strength = strength;
      spec.gate = scalar_decay ? kda::Gate::softplus : kda::Gate::none;
      spec.qk_l2norm = true, spec.beta_sigmoid = strength != kda::Strength::gates;
      specs.emplace_back(scalar_decay ? "one decay for all K" : "a decay for each channel", spec);
    }
  return specs;
}

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

GradientTruths oracle(const kda::Problem& problem, int threads = 1,
                      kda::OraclePrecision precision = kda::OraclePrecision::double_double,
                      std::size_t chunk_size = 64) {
  return kda::run_gradient_oracle(problem, precision, chunk_size, threads);
}
const GradientTruth& of(const GradientTruths& truths, Gradient gradient) {
  return truths[static_cast<std::size_t>(gradient)];
}

void check_same(const GradientTruth& a, const GradientTruth& b) {
  CHECK(test::same_bits(a.hi, b.hi));
  CHECK(test::same_bits(a.lo, b.lo));
  CHECK(test::same_bits(a.magnitude, b.magnitude));
  CHECK(test::same_bits(a.chunk_magnitude, b.chunk_magnitude));
}

}  // namespace

TEST_CASE("every gradient is what central differences of the forward oracle say, to 1e-10", "[gradients]") {
  std::vector<NamedSpec> all = every_option();
  for (const NamedSpec& relative : relatives()) all.push_back(relative);
  for (const auto& [name, narrow] : all) {
    ProblemSpec spec = narrow;
    spec.dtype = DType::fp64;
    kda::Problem problem = problem_with_loss(spec);
    if (problem.A_log) problem.A_log = problem.A_log->converted_to(DType::fp64);
    if (problem.dt_bias) problem.dt_bias = problem.dt_bias->converted_to(DType::fp64);
    const GradientTruths truths = oracle(problem);
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
  std::vector<NamedSpec> specs = every_option();
  specs.emplace_back("beyond one block", ProblemSpec{});
  specs.back().second.T = 70, specs.back().second.gate_size = 0.05;
  for (const auto& [name, spec] : specs) {
    const kda::Problem problem = problem_with_loss(spec);
    const GradientTruths truths = oracle(problem);
    test::BigReverse reverse(problem);
    for (const kda::GradientRow& row : kda::gradients()) {
      const GradientTruth& truth = of(truths, row.gradient);
      INFO(name << ": " << row.name);
      CHECK(test::worst(test::values_of(truth), reverse.of(row.gradient), truth.magnitude) <= 1e-27);
    }
  }
}

TEST_CASE("the fp64 oracle's gradients are as exact as fp64 allows", "[gradients]") {
  for (const auto& [name, spec] : every_option()) {
    const kda::Problem problem = problem_with_loss(spec);
    const GradientTruths got = oracle(problem, 1, kda::OraclePrecision::fp64);
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
    const GradientTruths truths = oracle(problem, 2);
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

TEST_CASE("magnitudes of gradients are never below the values, nor beyond 1e4 times what is typical",
          "[gradients]") {
  for (const auto& [name, spec] : every_option()) {
    const kda::Problem problem = problem_with_loss(spec);
    const GradientTruths truths = oracle(problem);
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
  kda::Problem problem = problem_with_loss(spec);
  problem.state_gradient.reset();
  const GradientTruths truths = oracle(problem);
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
    kda::Problem problem = problem_with_loss(spec);
    problem.state_gradient.reset();
    const GradientTruths truths = oracle(problem);
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
  const GradientTruths truths = oracle(problem);
  for (const Gradient gradient : {Gradient::dv, Gradient::dg, Gradient::dinitial_state})
    for (const double magnitude : of(truths, gradient).magnitude) REQUIRE(magnitude < 1e5);
}

TEST_CASE("dg of the first token is exactly zero without an initial state, where the chunk form cancels",
          "[gradients]") {
  ProblemSpec spec;
  spec.initial_state = false, spec.T = 40;
  const GradientTruths truths = oracle(problem_with_loss(spec), 1, kda::OraclePrecision::double_double, 16);
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
  const kda::Problem problem = problem_with_loss(spec);
  const GradientTruths truths = oracle(problem, 1, kda::OraclePrecision::double_double, 8);
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

TEST_CASE("the gradient of an empty sequence's initial state is dht", "[gradients]") {
  ProblemSpec spec;
  spec.T = 6, spec.cu_seqlens = {0, 0, 6, 6}, spec.state_v_first = true;
  const kda::Problem problem = problem_with_loss(spec);
  const GradientTruths truths = oracle(problem);
  const GradientTruth& state = of(truths, Gradient::dinitial_state);
  const std::size_t size = spec.K * spec.V;
  for (const std::size_t sequence : {0, 2})
    for (std::size_t i = sequence * size; i < (sequence + 1) * size; ++i)
      CHECK(state.hi[i] == problem.state_gradient->value(i));
}

TEST_CASE("gradients are linear in do and dht, and what is missing counts as zero", "[gradients]") {
  const kda::Problem problem = problem_with_loss(every_option()[2].second);
  kda::Problem output_only = kda::clone(problem), state_only = kda::clone(problem);
  output_only.state_gradient.reset(), state_only.output_gradient.reset();
  const GradientTruths both = oracle(problem), output = oracle(output_only), state = oracle(state_only);
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
    kda::Problem problem = problem_with_loss(spec);
    for (std::size_t k = 0; k < spec.K; ++k)
      problem.g.set(5 * spec.K + k, gate == kda::Gate::none ? -HUGE_VAL : 1e5);
    for (std::size_t i = 0; i < 5 * spec.V; ++i) problem.output_gradient->set(i, 0.0);
    const GradientTruths truths = oracle(problem);
    for (const kda::GradientRow& row : kda::gradients())
      for (const double value : of(truths, row.gradient).hi) REQUIRE(std::isfinite(value));
    for (std::size_t at = 0; at < 6 * spec.K; ++at) CHECK(of(truths, Gradient::dg).hi[at] == 0);
    for (const double value : of(truths, Gradient::dinitial_state).hi) CHECK(value == 0);
  }
}

TEST_CASE("the gradients' oracle gives the same bits on any number of threads", "[gradients]") {
  ProblemSpec spec = every_option()[2].second;
  spec.T = 70, spec.K = 20, spec.V = 35;
  const kda::Problem problem = problem_with_loss(spec);
  const GradientTruths one = oracle(problem, 1), three = oracle(problem, 3);
  for (std::size_t i = 0; i < kda::gradient_count; ++i) check_same(one[i], three[i]);
}

TEST_CASE("the gradients of a batch row are those of the row alone", "[gradients]") {
  ProblemSpec spec = every_option()[2].second;
  const kda::Problem problem = problem_with_loss(spec);
  const GradientTruths both = oracle(problem);
  spec.B = 1;
  for (std::size_t batch = 0; batch < 2; ++batch) {
    kda::Problem row = problem_with_loss(spec);
    const auto copy = [&](const tensor::Tensor& from, tensor::Tensor& to) {
      std::memcpy(to.data(), from.at(batch * to.size()), to.bytes());
    };
    for (const Gradient gradient :
         {Gradient::dq, Gradient::dk, Gradient::dv, Gradient::dg, Gradient::dbeta, Gradient::dinitial_state})
      copy(input_of(const_cast<kda::Problem&>(problem), gradient), input_of(row, gradient));
    copy(*problem.output_gradient, *row.output_gradient), copy(*problem.state_gradient, *row.state_gradient);
    row.A_log = problem.A_log->clone(), row.dt_bias = problem.dt_bias->clone();
    const GradientTruths alone = oracle(row);
    for (const Gradient gradient : {Gradient::dq, Gradient::dk, Gradient::dv, Gradient::dg, Gradient::dbeta,
                                    Gradient::dinitial_state}) {
      const GradientTruth &part = of(alone, gradient), &whole = of(both, gradient);
      const auto same = [&](std::span<const double> a, std::span<const double> b) {
        return std::equal(a.begin(), a.end(), b.begin() + static_cast<std::ptrdiff_t>(batch * a.size()));
      };
      CHECK((same(part.hi, whole.hi) && same(part.lo, whole.lo) && same(part.magnitude, whole.magnitude)));
    }
  }
}
