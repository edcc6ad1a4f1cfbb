// The backward stages of the chunk form: runs against their truth.
#include <algorithm>
#include <cmath>

#include "kda/truth/gradient_oracle.hpp"
#include "kda/truth/stage_oracle.hpp"
#include "kda/variants/variants.hpp"
#include "numeric/double_double_functions.hpp"
#include "support/catch.hpp"
#include "support/chunks.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"

namespace stage_gradients_tests {

using namespace kda_check;
using kda::Gradient;
using kda::Passes;
using kda::Stage;
using numeric::DoubleDouble;
using numeric::DType;

namespace {

std::size_t number(Stage stage) { return static_cast<std::size_t>(stage); }
std::size_t number(Gradient gradient) { return static_cast<std::size_t>(gradient); }

/// Without norm, gate and sigmoid: the gradients are those of what the chunk form reads.
std::vector<test::ProblemSpec> plain_specs() {
  test::ProblemSpec plain, packed, grouped, steep;
  plain.T = 40, plain.K = 12, plain.V = 20, plain.chunk_size = 16;
  packed.T = 50, packed.K = 8, packed.V = 6, packed.chunk_size = 16, packed.cu_seqlens = {0, 1, 18, 18, 50};
  packed.initial_state = false;
  grouped.T = 20, grouped.H = 2, grouped.HV = 4, grouped.K = 16, grouped.V = 8, grouped.state_v_first = true;
  grouped.B = 2, grouped.chunk_size = 16;
  steep.T = 33, steep.K = 6, steep.V = 5, steep.chunk_size = 32, steep.gate_size = 4;
  return {plain, packed, grouped, steep};
}

struct Truths {
  kda::Problem problem;
  std::size_t chunk;
  kda::StageTruths stages;
  kda::GradientTruths gradients;

  explicit Truths(const test::ProblemSpec& spec)
      : problem(test::with_loss(test::make_problem(spec))),
        chunk(static_cast<std::size_t>(spec.chunk_size)),
        stages(kda::run_stage_oracle(problem, chunk, 2, Passes::both)),
        gradients(kda::run_gradient_oracle(problem, kda::OraclePrecision::double_double, chunk, 2)) {}
};

}  // namespace

TEST_CASE("chunk backwards in fp64 computes every stage to its last digits", "[stages][backward]") {
  std::vector<test::ProblemSpec> specs = plain_specs();
  test::ProblemSpec& gated = specs.emplace_back();
  gated.T = 30, gated.gate = kda::Gate::lower_bound, gated.qk_l2norm = gated.beta_sigmoid = true;
  gated.chunk_size = 32;
  for (const test::ProblemSpec& spec : specs) {
    const kda::Problem problem = test::with_loss(test::make_problem(spec));
    const auto C = static_cast<std::size_t>(spec.chunk_size);
    const kda::StageTruths truths = kda::run_stage_oracle(problem, C, 1, Passes::both);
    kda::StageTensors computed = kda::allocate_stages(problem, C, DType::fp64, Passes::both);
    kda::RunOptions options = test::default_options(problem, "chunk", DType::fp64);
    options.stages.computed = &computed;
    kda::run_chunk_backward(problem, options);
    for (const kda::StageRow& row : kda::stages(Passes::both)) {
      if (!row.backward) continue;
      const kda::StageTruth& truth = truths[number(row.stage)];
      REQUIRE(computed[number(row.stage)].size() == truth.hi.size());
      double largest = 0;
      for (std::size_t e = 0; e < truth.hi.size(); ++e) {
        INFO(row.name << " " << e);
        REQUIRE(std::fabs(computed[number(row.stage)].value(e) - truth.hi[e]) <=
                1e-14 * (1e-2 + truth.magnitude[e]));
        REQUIRE(std::fabs(truth.hi[e]) <= (1 + 1e-12) * truth.magnitude[e]);
        largest = std::max(largest, std::fabs(truth.hi[e]));
      }
      CHECK(largest > 1e-3);  // something was there to compare
    }
  }
}

TEST_CASE("a backward run given its own stages gives the same bits, given exact ones better gradients",
          "[stages][backward]") {
  test::ProblemSpec spec;
  spec.T = 50, spec.H = 1, spec.HV = 2, spec.K = 20, spec.V = 33, spec.chunk_size = 16;
  spec.cu_seqlens = {0, 20, 50};
  const Truths exact(spec);
  kda::StageTensors own = kda::allocate_stages(exact.problem, 16, DType::fp32, Passes::both);
  kda::RunOptions options = test::default_options(exact.problem, "chunk", DType::fp32);
  options.stages.computed = &own;
  test::run(exact.problem, "chunk", options);
  const kda::GradientTensors plain = kda::run_chunk_backward(exact.problem, options);
  options.stages = {};
  options.stages.given = &own;
  options.stages.use_given.fill(true);
  const kda::GradientTensors again = kda::run_chunk_backward(exact.problem, options);
  const kda::StageTensors rounded = kda::rounded_stages(exact.stages, exact.problem, 16, DType::fp32);
  options.stages.given = &rounded;
  const kda::GradientTensors best = kda::run_chunk_backward(exact.problem, options);
  for (const kda::GradientRow& row : kda::gradients()) {
    const tensor::Tensor& gradient = plain[number(row.gradient)];
    if (gradient.empty()) continue;
    INFO(row.name);
    CHECK(test::differing_bits(gradient, again[number(row.gradient)]) == 0);
    const kda::GradientTruth& truth = exact.gradients[number(row.gradient)];
    std::vector<DoubleDouble> values(truth.hi.size());
    for (std::size_t e = 0; e < values.size(); ++e) values[e] = {truth.hi[e], truth.lo[e]};
    const double error = test::rms_ratio(best[number(row.gradient)], values);
    // dinitial_state loses most in the first chunk's last sum, which is not a stage.
    const double part = row.gradient == Gradient::dinitial_state ? 1 : 0.9;
    CHECK(error < part * test::rms_ratio(gradient, values));
    CHECK(error < 1e-6);
  }
}

TEST_CASE("a given backward stage changes what follows from it, and nothing before it",
          "[stages][backward]") {
  test::ProblemSpec spec;
  spec.T = 16, spec.K = 12, spec.V = 10, spec.chunk_size = 16;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  kda::RunOptions options = test::default_options(problem, "chunk", DType::fp32);
  kda::StageTensors plain = kda::allocate_stages(problem, 16, DType::fp32, Passes::both);
  options.stages.computed = &plain;
  kda::run_chunk_backward(problem, options);
  struct Row {
    Stage given;
    std::vector<Stage> changed;
  };
  const Row rows[] = {{Stage::dAqk, {}},
                      {Stage::dv_local, {Stage::dv, Stage::dw, Stage::dAkk}},
                      {Stage::dh, {Stage::dv, Stage::dw, Stage::dAkk}},
                      {Stage::dv, {Stage::dw, Stage::dAkk}},
                      {Stage::dw, {Stage::dAkk}},
                      {Stage::dAkk, {}}};
  for (const Row& row : rows) {
    kda::StageTensors other = kda::allocate_stages(problem, 16, DType::fp32, Passes::both);
    kda::StageTensors given = kda::allocate_stages(problem, 16, DType::fp32, Passes::both);
    tensor::Tensor& altered = given[number(row.given)];
    for (std::size_t e = 0; e < altered.size(); ++e) altered.set(e, 1.5 * plain[number(row.given)].value(e));
    options.stages = {&other, &given, {}};
    options.stages.use_given[number(row.given)] = true;
    kda::run_chunk_backward(problem, options);
    for (const kda::StageRow& stage : kda::stages(Passes::both)) {
      if (!stage.backward) continue;
      INFO(kda::row_of(row.given).name << " given, " << stage.name);
      const bool changes =
          std::find(row.changed.begin(), row.changed.end(), stage.stage) != row.changed.end();
      CHECK((test::differing_bits(plain[number(stage.stage)], other[number(stage.stage)]) > 0) == changes);
    }
  }
}

}  // namespace stage_gradients_tests
