// Backwards with operands that are split: the adjoint of h100-mma3 with the errors of fp32.
#include <array>
#include <cmath>

#include "kda/regimes/regimes.hpp"
#include "kda/truth/gradient_oracle.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"
#include "support/sampled.hpp"

namespace split_backward_tests {

using namespace kda_check;
using numeric::DType;
using test::ProblemSpec;

namespace {

kda::RunOptions under(const kda::Problem& problem, std::initializer_list<std::string_view> words,
                      DType dtype = DType::fp32) {
  kda::RunOptions options = test::default_options(problem, "chunk", dtype);
  options.threads = 2;
  for (const std::string_view word : words) kda::set_axis(options.arithmetic, word);
  return options;
}

/// Squares of the errors of every gradient under h100-mma3 and under h100, of all problems together: where a
/// gradient has few numbers, one problem tells little.
class BesideOtherCores {
 public:
  void add(const kda::Problem& problem) {
    const kda::GradientTruths truths = test::gradient_truths(problem);
    const kda::GradientTensors split = kda::run_chunk_backward(problem, under(problem, {"h100-mma3"})),
                               plain = kda::run_chunk_backward(problem, under(problem, {"h100"}));
    for (std::size_t g = 0; g < kda::gradient_count; ++g) {
      REQUIRE(split[g].empty() == plain[g].empty());
      if (split[g].empty()) continue;
      const auto square = [&](const tensor::Tensor& x) {
        const double ratio = test::rms_ratio(x, truths[g]);
        return ratio * ratio;
      };
      split_[g] += square(split[g]), plain_[g] += square(plain[g]);
    }
  }
  void check(double factor) const {
    std::size_t compared = 0;
    for (const kda::GradientRow& row : kda::gradients()) {
      const auto g = static_cast<std::size_t>(row.gradient);
      if (plain_[g] == 0) continue;
      ++compared;
      const double error = std::sqrt(split_[g]), other = std::sqrt(plain_[g]);
      INFO(row.name << " " << error << " beside " << other);
      CHECK(error < factor * other);
    }
    CHECK(compared >= 5);
  }

 private:
  std::array<double, kda::gradient_count> split_{}, plain_{};
};

}  // namespace

TEST_CASE("split operands leave a tensor core's gradients the errors of fp32", "[backward][split]") {
  for (const char* const regime :
       {"control:T=128,H=1,loss=1", "lb_real:T=128,loss=1", "corr_keys:T=128,H=1,loss=1"}) {
    INFO(regime);
    BesideOtherCores errors;
    errors.add(kda::parse_regime(regime).build());
    errors.check(1.5);
  }
}

TEST_CASE("split operands leave gradients the errors of fp32 with every option", "[backward][split]") {
  for (const kda::Gate gate : {kda::Gate::none, kda::Gate::softplus, kda::Gate::lower_bound}) {
    INFO("gate " << kda::name_of(gate));
    BesideOtherCores errors;
    const test::Sampled sample(4);
    INFO(sample.text());
    for (int options = 0; options < 64; ++options) {
      if (!sample.has(static_cast<std::size_t>(options + options / 4))) continue;
      ProblemSpec spec = test::spec_with_options(gate, options);
      spec.safe_gate = options & 8;
      errors.add(test::with_loss(test::make_problem(spec, static_cast<std::uint64_t>(options))));
    }
    errors.check(1.5);
  }
}

TEST_CASE("split operands leave gradients the errors of fp32 on packed sequences and in every form of decay",
          "[backward][split]") {
  const kda::Problem problem = test::with_loss(test::make_problem(test::packed_spec()));
  BesideOtherCores errors;
  errors.add(problem);
  errors.check(1.5);
  const kda::GradientTruths truths = test::gradient_truths(problem);
  for (const char* const decay :
       {"decay=anchor-pair", "decay=anchor-first", "decay=anchor-mid", "decay=pair"}) {
    INFO(decay);
    test::check_near(kda::run_chunk_backward(problem, under(problem, {"h100-mma3", decay})), truths, 5e-6);
  }
}

TEST_CASE("with update=added a state's gradient is decayed and added to in one operation",
          "[backward][split]") {
  // One token without a decay: D' = D - k dp, and dp is the gradient of v.
  ProblemSpec spec;
  spec.T = spec.H = spec.HV = 1, spec.K = 37, spec.V = 21;
  kda::Problem problem = test::with_loss(test::make_problem(spec));
  problem.output_gradient.reset();
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, 0);
  std::size_t otherwise = 0;
  for (const bool is_added : {true, false}) {
    const kda::GradientTensors got = kda::run_chunk_backward(
        problem, under(problem, {"delta=residual", is_added ? "update=added" : "update=chained"}));
    const auto& dv = got[static_cast<std::size_t>(kda::Gradient::dv)];
    const auto& state = got[static_cast<std::size_t>(kda::Gradient::dinitial_state)];
    for (std::size_t k = 0; k < spec.K; ++k)
      for (std::size_t v = 0; v < spec.V; ++v) {
        const auto key = static_cast<float>(problem.k.value(k)), dp = static_cast<float>(dv.value(v)),
                   D = static_cast<float>(problem.state_gradient->value(k * spec.V + v));
        const float added = D + key * -dp, chained = std::fma(key, -dp, D);
        REQUIRE(state.value(k * spec.V + v) == static_cast<double>(is_added ? added : chained));
        otherwise += added != chained;
      }
  }
  CHECK(otherwise > 0);
}

TEST_CASE("under split sums that no tensor core forms are added by lanes, and the norm is the forward pass's",
          "[backward][split]") {
  // With operands that are exact in bf16 and few terms, split and lanes multiply alike: what is left is how
  // all else is added.
  ProblemSpec spec;
  spec.T = 100, spec.K = 48, spec.V = 40, spec.H = 1, spec.HV = 2, spec.dtype = DType::bf16;
  spec.qk_l2norm = spec.beta_sigmoid = true, spec.gate = kda::Gate::softplus;
  const kda::Problem problem = test::with_loss(test::make_problem(spec));
  const auto rounded =
      "storage=bf16@tensor_core+bf16@score_operands+bf16@inverse_operands+bf16@operands+"
      "bf16@Aqk+bf16@Akk_inv+bf16@v_new+bf16@state+bf16@dv+bf16@dh+bf16@dA";
  const kda::GradientTensors split = kda::run_chunk_backward(problem, under(problem, {"h100-mma3", rounded})),
                             lanes = kda::run_chunk_backward(
                                 problem, under(problem, {"h100-mma3", "reduction=lanes:25", rounded}));
  CHECK(test::differing(split, lanes) == 0);
}

}  // namespace split_backward_tests
