// Backwards with delta=residual: the adjoint of what runs forwards, without u and w.
#include "kda/truth/gradient_oracle.hpp"
#include "kda/truth/stage_oracle.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"

namespace residual_backward_tests {

using namespace kda_check;
using kda::Passes;
using kda::Strength;
using numeric::DType;
using test::ProblemSpec;

namespace {

kda::RunOptions by_residual(const kda::Problem& problem, DType dtype,
                            const std::vector<std::string>& words = {}) {
  kda::RunOptions options = test::default_options(problem, "chunk", dtype);
  kda::set_axis(options.arithmetic, "delta=residual");
  for (const std::string& word : words) kda::set_axis(options.arithmetic, word);
  return options;
}

std::vector<ProblemSpec> specs() {
  std::vector<ProblemSpec> specs(4);
  specs[0].T = 75, specs[0].H = 2, specs[0].HV = 4, specs[0].K = 40, specs[0].V = 21;
  specs[1] = specs[0];
  specs[1].qk_l2norm = specs[1].beta_sigmoid = specs[1].state_v_first = true;
  specs[1].gate = kda::Gate::lower_bound, specs[1].chunk_size = 16;
  specs[2] = test::packed_spec();
  specs[2].gate = kda::Gate::softplus, specs[2].initial_state = false;
  specs[3] = specs[0];
  specs[3].strength = Strength::gates, specs[3].chunk_size = 32;
  return specs;
}

void check_gradients(const kda::Problem& problem, const kda::RunOptions& options, double limit) {
  const kda::GradientTensors got = kda::run_chunk_backward(problem, options);
  const kda::GradientTruths truths =
      kda::run_gradient_oracle(problem, kda::OraclePrecision::double_double, 64, 2);
  std::size_t compared = 0;
  for (const kda::GradientRow& row : kda::gradients()) {
    const auto g = static_cast<std::size_t>(row.gradient);
    if (got[g].empty()) continue;
    INFO(row.name);
    ++compared;
    CHECK(test::rms_ratio(got[g], test::values_of(truths[g])) <= limit);
  }
  CHECK(compared >= 5);
}

}  // namespace

TEST_CASE("with delta=residual chunk's gradients in fp64 are the oracle's to 1e-12", "[backward][residual]") {
  for (const ProblemSpec& spec : specs()) {
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    for (const char* const decay : {"decay=pair", "decay=anchor-pair:16", "decay=anchor-mid:16"}) {
      INFO("K " << spec.K << " T " << spec.T << " " << decay);
      check_gradients(problem, by_residual(problem, DType::fp64, {decay}), 1e-12);
    }
  }
}

TEST_CASE("with delta=residual and segments the gradients are those without", "[backward][residual]") {
  ProblemSpec spec;
  spec.T = 300, spec.K = 24, spec.V = 20, spec.chunk_size = 16;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  check_gradients(problem, by_residual(problem, DType::fp64, {"segments=tree:4"}), 1e-12);
}

TEST_CASE("under h100-mma gradients err as bf16 does, and at most a twentieth more than FLA's",
          "[backward][residual]") {
  ProblemSpec spec;
  spec.T = 200, spec.H = spec.HV = 2, spec.K = 64, spec.V = 48, spec.dtype = DType::bf16;
  spec.qk_l2norm = spec.beta_sigmoid = true, spec.gate = kda::Gate::softplus;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  const kda::GradientTruths truths =
      kda::run_gradient_oracle(problem, kda::OraclePrecision::double_double, 64, 2);
  const auto gradients = [&](const char* preset) {
    kda::RunOptions options = test::default_options(problem, "chunk", DType::bf16);
    kda::set_axis(options.arithmetic, preset);
    return kda::run_chunk_backward(problem, options);
  };
  const kda::GradientTensors mma = gradients("h100-mma"), fla = gradients("fla");
  for (const kda::GradientRow& row : kda::gradients()) {
    const auto g = static_cast<std::size_t>(row.gradient);
    if (mma[g].empty()) continue;
    const double error = test::rms_ratio(mma[g], test::values_of(truths[g]));
    INFO(row.name << " " << error);
    CHECK(error < 8e-3);
    CHECK(error < 1.05 * test::rms_ratio(fla[g], test::values_of(truths[g])));
  }
}

TEST_CASE("with delta=residual dw is formed for those who ask, and nothing follows from it",
          "[backward][residual][stages]") {
  ProblemSpec spec;
  spec.T = 50, spec.K = 20, spec.V = 33, spec.chunk_size = 16;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  kda::RunOptions options = by_residual(problem, DType::fp64);
  const kda::GradientTensors plain = kda::run_chunk_backward(problem, options);
  kda::StageTensors computed = kda::allocate_stages(problem, 16, DType::fp64, Passes::both);
  options.stages.computed = &computed;
  const kda::GradientTensors asked = kda::run_chunk_backward(problem, options);
  const kda::StageTruths truths = kda::run_stage_oracle(problem, 16, 1, Passes::both);
  for (const kda::StageRow& row : kda::stages(Passes::both)) {
    if (!row.backward) continue;
    const auto s = static_cast<std::size_t>(row.stage);
    std::vector<numeric::DoubleDouble> exact(truths[s].hi.size());
    for (std::size_t e = 0; e < exact.size(); ++e) exact[e] = {truths[s].hi[e], truths[s].lo[e]};
    INFO(row.name);
    CHECK(test::rms_ratio(computed[s], exact) <= 1e-12);
  }
  for (const kda::GradientRow& row : kda::gradients()) {
    const auto g = static_cast<std::size_t>(row.gradient);
    if (plain[g].empty()) continue;
    CHECK(test::differing_bits(plain[g], asked[g]) == 0);
  }
}

}  // namespace residual_backward_tests
