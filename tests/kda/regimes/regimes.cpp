// The recipes keep their promises: what is asked for is what is drawn.
#include "kda/regimes/regimes.hpp"

#include <cmath>
#include <set>

#include "base/error.hpp"
#include "kda/bounds/gate_statistics.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace regimes_tests {

using namespace kda_check;
using numeric::DType;

namespace {

kda::Problem built(std::string_view text) { return kda::parse_regime(text).build(); }

/// The regime with few tokens, where its recipe leaves T open.
std::string small(const kda::Recipe& recipe) {
  return std::string(recipe.name) + (recipe.name == "split_invariance" ? ":T=9,cut=5" : ":T=40");
}

bool same_inputs(const kda::Problem& a, const kda::Problem& b) {
  return test::differing_bits(a.q, b.q) + test::differing_bits(a.k, b.k) + test::differing_bits(a.v, b.v) +
             test::differing_bits(a.g, b.g) + test::differing_bits(a.beta, b.beta) ==
         0;
}

/// Cosine of the keys of tokens s and t of head 0.
double cosine(const kda::Problem& problem, std::size_t s, std::size_t t) {
  const kda::Dimensions& d = problem.dimensions();
  double product = 0, a = 0, b = 0;
  for (std::size_t i = 0; i < d.K; ++i) {
    const double x = problem.k.value(s * d.H * d.K + i), y = problem.k.value(t * d.H * d.K + i);
    product += x * y, a += x * x, b += y * y;
  }
  return product / std::sqrt(a * b);
}

double share(const tensor::Tensor& tensor, double below) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < tensor.size(); ++i) count += tensor.value(i) < below;
  return static_cast<double>(count) / static_cast<double>(tensor.size());
}

double least(const tensor::Tensor& tensor) {
  double value = tensor.value(0);
  for (std::size_t i = 0; i < tensor.size(); ++i) value = std::min(value, tensor.value(i));
  return value;
}

std::string usage_of(std::string_view text) {
  try {
    built(text);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("every regime builds in every dtype, validates, and its truth is finite", "[regimes]") {
  for (const kda::Recipe& recipe : kda::recipes())
    for (const char* const dtype : {"fp64", "fp32", "bf16", "fp16"}) {
      INFO(recipe.name << ' ' << dtype);
      const kda::Problem problem = built(small(recipe) + ",dtype=" + dtype);
      CHECK(numeric::name_of(problem.dtype()) == dtype);
      if (problem.dtype() != DType::fp32) continue;
      for (const numeric::DoubleDouble& value : test::whole_oracle(problem).o) CHECK(std::isfinite(value.hi));
    }
}

TEST_CASE("names of regimes and of their parameters are theirs alone", "[regimes]") {
  std::set<std::string_view> names;
  for (const kda::Recipe& recipe : kda::recipes()) {
    CHECK(names.insert(recipe.name).second);
    std::set<std::string_view> parameters{"dtype"};
    const kda::RegimeRequest request = kda::parse_regime(recipe.name);
    for (const kda::Parameter& parameter : request.settings.all()) {
      CHECK(parameters.insert(parameter.name).second);
      CHECK(parameter.value >= parameter.least);
      CHECK(parameter.value <= parameter.most);
    }
  }
}

TEST_CASE("a regime is the same every time, and another with another seed", "[regimes]") {
  for (const kda::Recipe& recipe : kda::recipes()) {
    INFO(recipe.name);
    CHECK(same_inputs(built(small(recipe)), built(small(recipe) + ",seed=1")));
    // Every value of this one is prescribed.
    if (recipe.name != "residual_cancel")
      CHECK_FALSE(same_inputs(built(small(recipe)), built(small(recipe) + ",seed=2")));
  }
}

TEST_CASE("a short problem is the beginning of a long one, and one batch row that of more", "[regimes]") {
  const kda::Problem whole = built("lb_real:B=2,T=40,K=16,V=8"), start = built("lb_real:T=17,K=16,V=8");
  for (const auto& [longer, shorter] : {std::pair{&whole.k, &start.k},
                                        {&whole.v, &start.v},
                                        {&whole.g, &start.g},
                                        {&whole.beta, &start.beta}})
    for (std::size_t i = 0; i < shorter->size(); ++i) REQUIRE(longer->value(i) == shorter->value(i));
}

TEST_CASE("inputs are rounded to the dtype, gates and beta to fp32", "[regimes]") {
  const kda::Problem problem = built("lb_real:T=8,dtype=bf16");
  CHECK(problem.q.dtype() == DType::bf16);
  CHECK(problem.g.dtype() == DType::fp32);
  const tensor::Tensor& state = *problem.initial_state;
  CHECK(state.dtype() == DType::fp32);
  CHECK(test::differing_bits(state, state.converted_to(DType::bf16).converted_to(DType::fp32)) == 0);
  const kda::Problem wide = built("lb_real:T=8,dtype=fp64");
  CHECK(test::differing_bits(wide.g, wide.g.converted_to(DType::fp32).converted_to(DType::fp64)) == 0);
  // What a regime is about survives the rounding.
  CHECK(built("residual_cancel:dtype=bf16").initial_state->value(0) == 4098);
}

TEST_CASE("a size multiplies the values and the initial state, and nothing else", "[regimes]") {
  const kda::Problem one = built("layout_asym"), large = built("layout_asym:size=1024");
  const auto times = [](const tensor::Tensor& small, const tensor::Tensor& big, double factor) {
    for (std::size_t i = 0; i < small.size(); ++i)
      if (big.value(i) != small.value(i) * factor) return false;
    return true;
  };
  CHECK(times(one.v, large.v, 1024));
  CHECK(times(*one.initial_state, *large.initial_state, 1024));
  for (const auto& tensor : {&kda::Problem::q, &kda::Problem::k, &kda::Problem::g, &kda::Problem::beta})
    CHECK(times(one.*tensor, large.*tensor, 1));
}

TEST_CASE("keys have the cosine asked for", "[regimes]") {
  for (const double rho : {0.0, 0.5, 0.9, 0.9999}) {
    const kda::Problem problem = built("corr_keys:T=200,rho=" + std::to_string(rho));
    double sum = 0;
    for (std::size_t s = 0; s < 200; ++s)
      for (std::size_t t = s + 1; t < 200; ++t) sum += cosine(problem, s, t);
    // sqrt(rho (1 - rho)) of a key's noise lies along the common direction, 1 / sqrt(64) wide.
    CHECK(sum / (200 * 199 / 2) == Approx(rho).margin(0.02));
  }
}

TEST_CASE("gates are what the recipes say", "[regimes]") {
  for (const auto& [name, p] : {std::pair{"k3_layer0", 1.0}, {"k3_layer1", 0.35}, {"k3_slow", 0.1}}) {
    const kda::Problem problem = built(name);
    // Whole channels: 2 heads of 128 make the share, all tokens of one are alike.
    const double saturated = share(problem.g, -4.7);
    CHECK(saturated == Approx(p).margin(0.1));
    CHECK(share(problem.g, -0.021) == saturated);
    const std::size_t channels = problem.dimensions().HV * problem.dimensions().K;
    for (std::size_t i = channels; i < problem.g.size(); ++i)
      REQUIRE((problem.g.value(i) < -1) == (problem.g.value(i - channels) < -1));
    // The mean of a sum over 32 rows: the simulations have -156, -55 and -15.
    double sum = 0;
    for (std::size_t i = 0; i < problem.g.size(); ++i) sum += problem.g.value(i);
    CHECK(32 * sum / static_cast<double>(problem.g.size()) ==
          Approx(-32 * (saturated * 4.875 + (1 - saturated) * 0.01)).epsilon(0.02));
  }
  CHECK(share(built("sparse_spikes:p=0.6").g, -1) == Approx(0.6).margin(0.01));
  CHECK(share(built("mask_m1000:T=2000,K=4").g, -999) == Approx(0.1).margin(0.02));
  CHECK(least(built("identical_keys").g) == Approx(-3.07e-5).epsilon(1e-3));
  CHECK(least(built("ramp_clamp:drop=9").g) == Approx(-6.238).epsilon(1e-3));
  for (const auto& [A, bottom] : {std::pair{1, -20.0}, {4, -81.0}, {16, -323.0}})
    CHECK(least(built("unbounded_softplus:A=" + std::to_string(A)).g) == Approx(bottom).epsilon(0.15));
  CHECK(least(built("lb_real:A=15").g) >= -5);
}

TEST_CASE("a gate left to the kernel is the gate evaluated here", "[regimes]") {
  for (const char* const name : {"lb_real", "unbounded_softplus"}) {
    const std::string text = std::string(name) + ":T=70,K=16,V=8";
    const auto direct = test::whole_oracle(built(text)), raw = test::whole_oracle(built(text + ",raw=1"));
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < direct.o.size(); ++i) {
      difference += std::pow(direct.o[i].hi - raw.o[i].hi, 2);
      size += std::pow(direct.o[i].hi, 2);
    }
    CHECK(std::sqrt(difference / size) < 1e-6);
  }
}

TEST_CASE("parameters of the gate cast to bf16 change the answer", "[regimes]") {
  const kda::Problem exact = built("bf16_params:T=70,A=15"), cast = built("bf16_params:T=70,A=15,rounded=1");
  CHECK(same_inputs(exact, cast));
  // log 15 = 2.7081 is 2.7031 in bf16.
  CHECK(std::exp(cast.A_log->value(0)) / 15 - 1 == Approx(-0.0049).epsilon(0.01));
  CHECK(test::rms_ratio(test::run(cast, "recurrent", DType::fp32).o, test::whole_oracle(exact).o) > 1e-3);
}

TEST_CASE("words that make no regime are usage errors with a suggestion", "[regimes]") {
  CHECK_THAT(usage_of("corr_kyes"), ContainsSubstring("did you mean 'corr_keys'?"));
  CHECK_THAT(usage_of("corr_keys:roh=0.9"), ContainsSubstring("did you mean 'rho'?"));
  CHECK_THAT(usage_of("corr_keys:rho=1.5"), ContainsSubstring("wanted a number from 0 to 1"));
  CHECK_THAT(usage_of("corr_keys:rho=nan"), ContainsSubstring("wanted a number from 0 to 1"));
  CHECK_THAT(usage_of("corr_keys:T=2.5"), ContainsSubstring("wanted a whole number"));
  CHECK_THAT(usage_of("corr_keys:T="), ContainsSubstring("wanted a whole number"));
  CHECK_THAT(usage_of("corr_keys:rho"), ContainsSubstring("is not key=value"));
  CHECK_THAT(usage_of("corr_keys:dtype=fp8"), ContainsSubstring("no dtype 'fp8'"));
  CHECK_THAT(usage_of("onehot_exact:K=32"), ContainsSubstring("this regime needs 64"));
  CHECK_THAT(usage_of("control:H=4,HV=6"), ContainsSubstring("no multiple"));
  CHECK_THAT(usage_of("corr_keys:"), ContainsSubstring("a parameter is missing"));
  CHECK_THAT(usage_of("corr_keys:rho=0.5,"), ContainsSubstring("a parameter is missing"));
  CHECK_THAT(usage_of("corr_keys:rho=0.5,rho=0.6"), ContainsSubstring("rho is given twice"));
  CHECK_THAT(usage_of("corr_keys:dtype=bf16,T=8,dtype=bf16"), ContainsSubstring("dtype is given twice"));
  CHECK_THAT(usage_of("varlen:B=2"), ContainsSubstring("this regime needs 1"));
}

TEST_CASE("the settings of a regime, written out, give it again", "[regimes]") {
  const kda::RegimeRequest given = kda::parse_regime("k3_layer1:T=40,p=0.1234,dtype=bf16,seed=77");
  const kda::RegimeRequest again = kda::parse_regime("k3_layer1:" + given.settings.text());
  CHECK(again.settings.text() == given.settings.text());
  CHECK(same_inputs(given.build(), again.build()));
}

}  // namespace regimes_tests
