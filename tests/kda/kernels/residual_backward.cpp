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
  kda::RunOptions options = test::default_options(problem, "chunk", dtype, {"delta=residual"});
  for (const std::string& word : words) kda::set_axis(options.arithmetic, word);
  return options;
}

std::vector<ProblemSpec> specs() {
  std::vector<ProblemSpec> specs = test::few_specs();
  specs[1].chunk_size = 16;
  specs[2] = test::packed_spec();
  specs[2].gate = kda::Gate::softplus, specs[2].initial_state = false;
  specs.push_back(specs[0]);
  specs[3].strength = Strength::gates, specs[3].chunk_size = 32;
  return specs;
}

void check_gradients(const kda::Problem& problem, const kda::RunOptions& options, double limit) {
  test::check_near(kda::run_chunk_backward(problem, options), test::gradient_truths(problem), limit);
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
  const kda::GradientTruths truths = test::gradient_truths(problem);
  const auto gradients = [&](const char* preset) {
    kda::RunOptions options = test::default_options(problem, "chunk", DType::bf16, {preset});
    return kda::run_chunk_backward(problem, options);
  };
  const kda::GradientTensors mma = gradients("h100-mma"), fla = gradients("fla");
  for (const kda::GradientRow& row : kda::gradients()) {
    const auto g = static_cast<std::size_t>(row.gradient);
    if (mma[g].empty()) continue;
    const double error = test::rms_ratio(mma[g], truths[g]);
    INFO(row.name << " " << error);
    CHECK(error < 8e-3);
    CHECK(error < 1.05 * test::rms_ratio(fla[g], truths[g]));
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
  CHECK(test::differing(plain, asked) == 0);
}

}  // namespace residual_backward_tests
