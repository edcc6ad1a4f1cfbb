// The regimes of the backward pass show what they are for (docs/scenarios.md, "Backward").
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kda/regimes/regimes.hpp"
#include "kda/truth/gradient_oracle.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/problems.hpp"

namespace backward_regimes_tests {

using namespace kda_check;
using kda::Gradient;
using kda::GradientTensors;
using numeric::DoubleDouble;
using numeric::DType;

namespace {

constexpr char small[] = ",H=1,K=16,V=8";

kda::Problem built(const std::string& text) { return kda::parse_regime(text).build(); }

GradientTensors gradients(const kda::Problem& problem, std::string_view variant,
                          const std::vector<std::string>& assignments = {}) {
  kda::RunOptions options = test::default_options(problem, variant, DType::fp32);
  for (const std::string& assignment : assignments) kda::set_axis(options.arithmetic, assignment);
  return kda::variant_named(variant).run_backward(problem, options);
}

const tensor::Tensor& of(const GradientTensors& tensors, Gradient gradient) {
  return tensors[static_cast<std::size_t>(gradient)];
}

bool finite(const tensor::Tensor& tensor) {
  for (std::size_t i = 0; i < tensor.size(); ++i)
    if (!std::isfinite(tensor.value(i))) return false;
  return true;
}
bool finite(const GradientTensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return finite(tensor); });
}

kda::GradientTruth truth_of(const kda::Problem& problem, Gradient gradient) {
  auto truths = kda::run_gradient_oracle(problem, kda::OraclePrecision::double_double, 64, 1);
  return std::move(truths[static_cast<std::size_t>(gradient)]);
}

/// rms of the magnitude of dg over that of dg: what is added up, over what is left of it.
struct Cancellation {
  double recurrence, chunk;
};
Cancellation cancellation(const kda::Problem& problem) {
  const kda::GradientTruth truth = truth_of(problem, Gradient::dg);
  double recurrence = 0, chunk = 0, left = 0;
  for (std::size_t i = 0; i < truth.hi.size(); ++i) {
    recurrence += truth.magnitude[i] * truth.magnitude[i];
    chunk += truth.chunk_magnitude[i] * truth.chunk_magnitude[i];
    left += truth.hi[i] * truth.hi[i];
  }
  return {std::sqrt(recurrence / left), std::sqrt(chunk / left)};
}

}  // namespace

TEST_CASE("any regime has a loss when it is asked for one, and is otherwise the same",
          "[regimes][backward]") {
  for (const kda::Recipe& recipe : kda::recipes()) {
    if (recipe.name == "serve") continue;  // a call on a pool of states has no loss
    INFO(recipe.name);
    const std::string text = std::string(recipe.name) +
                             (recipe.name == "split_invariance" ? ":T=9,cut=5" : ":T=20") + ",dtype=bf16";
    const kda::Problem with = built(text + ",loss=1"), without = built(text + ",loss=0");
    CHECK_FALSE(without.has_loss());
    REQUIRE(with.output_gradient);
    REQUIRE(with.state_gradient);
    CHECK(with.output_gradient->dtype() == DType::bf16);
    CHECK(with.output_gradient->shape() == with.v.shape());
    CHECK(with.state_gradient->dtype() == DType::fp32);
    double squares = 0;
    for (std::size_t i = 0; i < with.output_gradient->size(); ++i)
      squares += std::pow(with.output_gradient->value(i), 2);
    if (recipe.name != "column_scales")  // which has a size for each column
      CHECK(squares / static_cast<double>(with.output_gradient->size()) == Approx(1).margin(0.2));
    CHECK(test::differing_bits(with.k, without.k) + test::differing_bits(with.v, without.v) +
              test::differing_bits(with.g, without.g) ==
          0);
    // By itself one is there where the backward pass is what the regime is about.
    CHECK(built(std::string(recipe.name) + (recipe.name == "split_invariance" ? ":T=9,cut=5" : ":T=20"))
              .has_loss() == recipe.name.starts_with("bwd_"));
  }
}

TEST_CASE("masked after the exponentials, o is finite and every gradient through a score is not",
          "[regimes][backward]") {
  const double edge = 88.72283905206835 / 63;  // ln FLT_MAX over the rows above the diagonal
  for (const double g : {-5.0, -1.001 * edge, -0.999 * edge}) {
    const kda::Problem problem = built(fmt::format("bwd_masked_exp:g={}{}", g, small));
    kda::RunOptions late = test::default_options(problem, "chunk", DType::fp32, {"decay=pair-late"});
    CHECK(finite(test::run(problem, "chunk", late).o));
    const GradientTensors got = kda::variant_named("chunk").run_backward(problem, late);
    const bool overflows = g < -edge;
    INFO(g);
    for (const Gradient gradient : {Gradient::dq, Gradient::dk, Gradient::dg, Gradient::dbeta})
      CHECK(finite(of(got, gradient)) != overflows);
    CHECK(finite(of(got, Gradient::dv)));
    for (const char* const variant : {"naive", "recurrent", "chunk"})
      CHECK(finite(gradients(problem, variant)));
    CHECK(finite(gradients(problem, "chunk", {"decay=pair"})));
  }
}

TEST_CASE("a saturated gate has a gradient where 1 - sigmoid has no digits left", "[regimes][backward]") {
  const kda::Problem problem = built("bwd_lb_saturated:H=3,K=16,V=8");
  const kda::GradientTruth truth = truth_of(problem, Gradient::dg);
  const tensor::Tensor dg = of(gradients(problem, "recurrent"), Gradient::dg).clone();
  CHECK(test::rms_ratio(dg, test::values_of(truth)) < 3e-6);
  CHECK(test::rms_ratio(of(gradients(problem, "naive"), Gradient::dg), test::values_of(truth)) < 3e-6);
  const kda::Dimensions& d = problem.dimensions();
  std::size_t without = 0, kept = 0;
  for (std::size_t i = 0; i < dg.size(); ++i) {
    const double z = std::exp(problem.A_log->value(i / d.K % d.HV)) * problem.g.value(i);
    const auto s = static_cast<float>(1 / (1 + std::exp(-z)));
    without += !(1 - s > 0);
    kept += std::fabs(dg.value(i) / truth.hi[i] - 1) < 1e-3;
  }
  CHECK(without > dg.size() / 2);
  CHECK(kept > dg.size() * 99 / 100);
}

TEST_CASE("gates at their bound overflow backwards whatever shares an anchor among 64 rows",
          "[regimes][backward]") {
  const kda::Problem problem = built("bwd_lb_saturated:H=3,K=16,V=8");
  CHECK(finite(gradients(problem, "naive")));
  CHECK(finite(gradients(problem, "recurrent")));
  for (const char* const decay : {"pair", "anchor-pair:16", "anchor-first:16", "factored:16"})
    CHECK(finite(gradients(problem, "chunk", {std::string("decay=") + decay})));
  for (const char* const decay : {"anchor-first:64", "factored:64"})
    CHECK_FALSE(finite(gradients(problem, "chunk", {std::string("decay=") + decay})));
}

TEST_CASE("the stronger the decay, the less is left of what the chunk form adds up for dg",
          "[regimes][backward]") {
  const Cancellation strong = cancellation(built(fmt::format("bwd_dgate_cancel:g=-5{}", small)));
  const Cancellation mild = cancellation(built(fmt::format("bwd_dgate_cancel:g=-1{}", small)));
  CHECK(strong.chunk > 5e3);
  CHECK(strong.chunk > 10 * mild.chunk);
  CHECK(strong.recurrence < 10);
}

TEST_CASE("without decay the first gate's gradient is zero for the recurrence, a residual for chunks",
          "[regimes][backward]") {
  const kda::Problem problem = built(fmt::format("bwd_gate_zero:T=64{}", small));
  const kda::GradientTruth truth = truth_of(problem, Gradient::dg);
  const GradientTensors naive = gradients(problem, "naive"), recurrent = gradients(problem, "recurrent"),
                        chunk = gradients(problem, "chunk");
  double residual = 0;
  for (std::size_t i = 0; i < problem.dimensions().K; ++i) {
    CHECK_FALSE(std::fabs(of(naive, Gradient::dg).value(i)) > 0);
    CHECK_FALSE(std::fabs(of(recurrent, Gradient::dg).value(i)) > 0);
    CHECK_FALSE(std::fabs(truth.hi[i]) > 0);
    const double got = std::fabs(of(chunk, Gradient::dg).value(i));
    CHECK(got <= 32 * 0x1p-24 * truth.chunk_magnitude[i]);
    residual += got;
  }
  CHECK(residual > 0);
  for (std::size_t i = problem.dimensions().K; i < truth.hi.size(); ++i) REQUIRE(std::fabs(truth.hi[i]) > 0);
}

TEST_CASE("tokens that wipe the state overflow factored gradients only, in a chunk of six rows too",
          "[regimes][backward]") {
  const kda::Problem problem = built(fmt::format("bwd_tail:p=0.3{}", small));
  CHECK(problem.dimensions().T % 64 == 6);
  CHECK_FALSE(finite(gradients(problem, "chunk", {"decay=factored:16"})));
  for (const char* const variant : {"naive", "recurrent", "chunk"}) {
    const GradientTensors got = gradients(problem, variant);
    for (const Gradient gradient : {Gradient::dg, Gradient::dk})
      CHECK(test::rms_ratio(of(got, gradient), test::values_of(truth_of(problem, gradient))) < 1e-5);
  }
}

TEST_CASE("one regime has every gradient there is, but those of gates, which another has",
          "[regimes][backward]") {
  const kda::Problem problem = built("bwd_chain:T=8"), gated = built("gdn2:T=8,loss=1");
  for (const kda::GradientRow& row : kda::gradients())
    CHECK(kda::has_gradient(row.name == "derase" || row.name == "dwrite" ? gated : problem, row.gradient));
  CHECK(problem.heads_per_group() == 2);
  CHECK(problem.options.qk_l2norm);
  CHECK(problem.options.beta_sigmoid);
}

}  // namespace backward_regimes_tests
