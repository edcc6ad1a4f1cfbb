// The gradient oracle on the GPU against the CPU's: the same bits of values, magnitudes and spreads.
#include "kda/truth/gradient_oracle.hpp"

#include "fixture/fixture.hpp"
#include "kda/regimes/regimes.hpp"
#include "kda/truth/gpu_oracle.hpp"
#include "support/gpu.hpp"
#include "support/loss.hpp"

namespace gradient_oracle_tests {

using namespace kda_check;
using kda::OracleDevice;
using kda::OraclePrecision;
using numeric::DType;
using test::ProblemSpec;

namespace {

/// Which NaN an operation gives differs between processors.
std::size_t differing(std::span<const double> a, std::span<const double> b) {
  REQUIRE(a.size() == b.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    count += std::memcmp(&a[i], &b[i], sizeof(double)) != 0 && !(a[i] != a[i] && b[i] != b[i]);
  return count;
}

void check_gradients(const kda::Problem& problem, std::size_t chunk_size = 64) {
  for (const OraclePrecision precision : {OraclePrecision::double_double, OraclePrecision::fp64}) {
    INFO((precision == OraclePrecision::fp64 ? "fp64" : "double-double"));
    const kda::GradientTruths cpu = kda::run_gradient_oracle(problem, precision, chunk_size, 16),
                              gpu = kda::run_gradient_oracle(problem, {precision, OracleDevice::gpu},
                                                             chunk_size, 16);
    for (const kda::GradientRow& row : kda::gradients()) {
      const auto g = static_cast<std::size_t>(row.gradient);
      INFO(row.name);
      CHECK(differing(cpu[g].hi, gpu[g].hi) == 0);
      CHECK(differing(cpu[g].lo, gpu[g].lo) == 0);
      CHECK(differing(cpu[g].magnitude, gpu[g].magnitude) == 0);
      CHECK(differing(cpu[g].chunk_magnitude, gpu[g].chunk_magnitude) == 0);
      CHECK(differing(cpu[g].spread, gpu[g].spread) == 0);
    }
  }
}

kda::Problem problem_of(const std::string& path) {
  kda::Problem problem = fixture::Fixture::open(path).read_problem();
  return problem.has_loss() ? std::move(problem) : test::with_loss(std::move(problem));
}

}  // namespace

TEST_CASE("the gradient oracle has the CPU's bits on every fixture", "[gradient_oracle]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::string& path : test::all_fixture_files()) {
    INFO(path);
    check_gradients(problem_of(path));
  }
}

TEST_CASE("the gradient oracle has the CPU's bits on every regime", "[gradient_oracle]") {
  KDA_CHECK_NEEDS_GPU();
  for (const kda::Recipe& recipe : kda::recipes())
    for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
      const std::string words = std::string(recipe.name) + ":dtype=" + std::string(numeric::name_of(dtype));
      INFO(words);
      kda::Problem problem = kda::parse_regime(words).build();
      if (!kda::gpu_gradient_oracle_unavailable(problem.dimensions()).empty()) continue;
      if (!problem.has_loss()) test::add_loss(problem);
      check_gradients(problem);
    }
}

TEST_CASE("the gradient oracle has the CPU's bits in every shape", "[gradient_oracle][small]") {
  KDA_CHECK_NEEDS_GPU();
  for (const std::size_t K : {1, 5, 16, 20, 31, 33, 60, 64, 100, 128, 130, 200, 256})
    for (const std::size_t V : {1, 3, 8, 33, 64, 70, 128, 200, 256}) {
      ProblemSpec spec;
      spec.K = K, spec.V = V, spec.T = 1 + (K * 7 + V) % 43, spec.H = 1 + K % 2,
      spec.HV = spec.H * (1 + V % 3);
      spec.B = 1 + V % 2, spec.state_v_first = V % 3 == 0;
      spec.qk_l2norm = K % 3 == 0, spec.initial_state = V % 4 != 0;
      INFO("K " << K << " V " << V << " T " << spec.T);
      check_gradients(test::with_loss(test::make_problem(spec, K * 1000 + V)), 16);
    }
}

TEST_CASE("the gradient oracle has the CPU's bits over many parts of a sequence",
          "[gradient_oracle][small]") {
  KDA_CHECK_NEEDS_GPU();
  // The heads make parts of 85 tokens, which is no multiple of a chunk.
  ProblemSpec spec;
  spec.T = 700, spec.B = 2, spec.H = 96, spec.HV = 192, spec.K = 16, spec.V = 12;
  spec.state_v_first = true, spec.gate = kda::Gate::softplus;
  for (const std::size_t chunk_size : {16, 64})
    check_gradients(test::with_loss(test::make_problem(spec)), chunk_size);
}

TEST_CASE("the gradient oracle has the CPU's bits with every option", "[gradient_oracle][small]") {
  KDA_CHECK_NEEDS_GPU();
  constexpr DType dtypes[] = {DType::fp64, DType::fp32, DType::bf16, DType::fp16};
  for (const kda::Gate gate : {kda::Gate::none, kda::Gate::softplus, kda::Gate::lower_bound})
    for (int options = 0; options < 64; ++options) {
      ProblemSpec spec = test::spec_with_options(gate, options);
      spec.T = 70, spec.initial_state = options & 8;
      spec.dtype = dtypes[static_cast<std::size_t>(options + options / 4) % 4];
      kda::Problem problem = test::with_loss(test::make_problem(spec, static_cast<std::uint64_t>(options)));
      if (options % 5 == 1) problem.output_gradient.reset();
      if (options % 5 == 2) problem.state_gradient.reset();
      INFO("gate " << kda::name_of(gate) << " options " << options);
      check_gradients(problem);
    }
}

TEST_CASE("the gradient oracle has the CPU's bits on packed sequences, empty ones included",
          "[gradient_oracle][small]") {
  KDA_CHECK_NEEDS_GPU();
  ProblemSpec spec = test::packed_spec();
  spec.gate = kda::Gate::lower_bound;
  check_gradients(test::with_loss(test::make_problem(spec)));
  spec.H = spec.HV = 160;
  spec.K = 16, spec.V = 16;
  check_gradients(test::with_loss(test::make_problem(spec)));
}

TEST_CASE("what the gradient oracle says of infinite inputs is the CPU's", "[gradient_oracle][small]") {
  KDA_CHECK_NEEDS_GPU();
  for (const kda::Gate gate : {kda::Gate::none, kda::Gate::softplus, kda::Gate::lower_bound})
    for (const std::size_t K : {20, 18})
      for (int at = 0; at < 14; ++at) {
        ProblemSpec spec;
        spec.gate = gate, spec.T = 40, spec.K = K, spec.V = 10, spec.qk_l2norm = at % 2 == 0;
        spec.beta_sigmoid = true, spec.dtype = DType::fp64;
        kda::Problem problem = kda::clone(test::with_loss(test::make_problem(spec)));
        tensor::Tensor* const tensors[] = {&problem.q,
                                           &problem.k,
                                           &problem.v,
                                           &problem.g,
                                           &problem.beta,
                                           &*problem.initial_state,
                                           &*problem.output_gradient};
        tensors[at / 2]->set(tensors[at / 2]->size() / 2, at % 4 < 2 ? -1e308 * 10 : -1e200);
        INFO("gate " << kda::name_of(gate) << ", K " << K << ", input " << at);
        check_gradients(problem);
      }
}

TEST_CASE("the gradient oracle goes through every kernel there is", "[gradient_oracle][race]") {
  KDA_CHECK_NEEDS_GPU();
  // Short, for tools that watch each access.
  for (const std::size_t V : {20, 64}) {
    ProblemSpec spec;
    spec.T = 11, spec.H = 1, spec.HV = 2, spec.K = 50, spec.V = V;
    spec.gate = kda::Gate::lower_bound, spec.qk_l2norm = spec.beta_sigmoid = true;
    check_gradients(test::with_loss(test::make_problem(spec)));
  }
}

}  // namespace gradient_oracle_tests
