// The gradient oracle on the GPU against the CPU's: the same bits of values, magnitudes and spreads.
#include "kda/truth/gradient_oracle.hpp"

#include "kda/truth/gpu_oracle.hpp"
#include "support/gpu.hpp"
#include "support/gpu_problems.hpp"

namespace gradient_oracle_tests {

using namespace kda_check;
using kda::OracleDevice;
using kda::OraclePrecision;
using numeric::DType;
using test::ProblemSpec;

namespace {

void check_gradients(const kda::Problem& problem, std::size_t chunk_size = 64) {
  for (const OraclePrecision precision : {OraclePrecision::double_double, OraclePrecision::fp64}) {
    INFO((precision == OraclePrecision::fp64 ? "fp64" : "double-double"));
    const kda::GradientTruths cpu = kda::run_gradient_oracle(problem, precision, chunk_size, 16),
                              gpu = kda::run_gradient_oracle(problem, {precision, OracleDevice::gpu},
                                                             chunk_size, 16);
    for (const kda::GradientRow& row : kda::gradients()) {
      const auto g = static_cast<std::size_t>(row.gradient);
      INFO(row.name);
      CHECK(test::differing(cpu[g].hi, gpu[g].hi) == 0);
      CHECK(test::differing(cpu[g].lo, gpu[g].lo) == 0);
      CHECK(test::differing(cpu[g].magnitude, gpu[g].magnitude) == 0);
      CHECK(test::differing(cpu[g].chunk_magnitude, gpu[g].chunk_magnitude) == 0);
      CHECK(test::differing(cpu[g].spread, gpu[g].spread) == 0);
    }
  }
}

}  // namespace

TEST_CASE("the gradient oracle has the CPU's bits on every fixture", "[gradient_oracle]") {
  KDA_CHECK_NEEDS_GPU();
  test::on_fixtures([](kda::Problem problem) { check_gradients(test::with_any_loss(std::move(problem))); });
}

TEST_CASE("the gradient oracle has the CPU's bits on every regime", "[gradient_oracle]") {
  KDA_CHECK_NEEDS_GPU();
  test::on_regimes(test::every_dtype, [](kda::Problem problem, DType) {
    if (kda::gpu_gradient_oracle_unavailable(problem.dimensions()).empty())
      check_gradients(test::with_any_loss(std::move(problem)));
  });
}

TEST_CASE("the gradient oracle has the CPU's bits in every shape", "[gradient_oracle][small]") {
  KDA_CHECK_NEEDS_GPU();
  test::in_shapes({1, 5, 16, 20, 31, 33, 60, 64, 100, 128, 130, 200, 256},
                  {1, 3, 8, 33, 64, 70, 128, 200, 256}, 1, 43,
                  [](const ProblemSpec& spec, std::uint64_t seed) {
                    check_gradients(test::with_loss(test::make_problem(spec, seed)), 16);
                  });
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
  test::with_every_option(70, [](ProblemSpec spec, std::size_t options) {
    spec.initial_state = options & 8, spec.dtype = test::every_dtype[(options + options / 4) % 4];
    kda::Problem problem = test::with_loss(test::make_problem(spec, options));
    if (options % 5 == 1) problem.output_gradient.reset();
    if (options % 5 == 2) problem.state_gradient.reset();
    check_gradients(problem);
  });
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
    for (const std::size_t K : {20, 18}) {
      ProblemSpec spec;
      spec.gate = gate, spec.T = 40, spec.K = K, spec.V = 10;
      test::with_huge_inputs(spec, true, [](const kda::Problem& problem) { check_gradients(problem); });
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
