// Formulations on the regimes they are known to fail on, and on those they must survive (docs/scenarios.md).
// The errors come from simulations with other random numbers and are taken as orders of magnitude.
#include <cmath>
#include <string>

#include "kda/regimes/regimes.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace formulations_tests {

using namespace kda_check;
using numeric::DType;

namespace {

constexpr double anything = HUGE_VAL;

struct Case {
  std::string regime, words;  ///< words of --arithmetic, separated by blanks
  double least, most;         ///< of rms_ratio of o; `anything` includes results that are not finite
};

double error_of(const kda::Problem& problem, const test::WholeOracle& oracle, const char* variant,
                const std::string& words) {
  kda::RunOptions options = test::default_options(problem, variant, DType::fp32);
  for (std::size_t from = 0; from < words.size();) {
    const std::size_t to = std::min(words.find(' ', from), words.size());
    kda::set_axis(options.arithmetic, words.substr(from, to - from));
    from = to + 1;
  }
  const double error = test::rms_ratio(test::run(problem, variant, options).o, oracle.o);
  return std::isfinite(error) ? error : HUGE_VAL;
}

void hold(const std::vector<Case>& cases, const char* variant = "chunk") {
  std::string built;
  kda::Problem problem;
  test::WholeOracle oracle;
  for (const Case& item : cases) {
    if (item.regime != built) {
      problem = kda::parse_regime(item.regime).build();
      oracle = test::whole_oracle(problem);
      built = item.regime;
    }
    INFO(item.regime << ' ' << variant << ' ' << item.words);
    const double error = error_of(problem, oracle, variant, item.words);
    CHECK(error >= item.least);
    CHECK(error <= item.most);
  }
}

const std::string fp16 = " storage=fp16@inverse_operands", bf16 = " storage=bf16@inverse_operands",
                  tf32 = " storage=tf32@inverse_operands";

}  // namespace

TEST_CASE("doubling fails on keys alike, the more the larger the block, the narrower the format and rho",
          "[formulations]") {
  std::vector<Case> cases;
  struct Row {
    const char* rho;
    double fp32_16, fp16_16, fp32_32, tf32_32, bf16_32, fp32_64;  // as simulated elsewhere
  };
  for (const Row& row : {Row{"0", 3e-7, 1.2e-4, 3e-7, 2e-4, 1.4e-3, 3e-7},
                         {"0.5", 1.3e-6, 6e-3, 4e-4, 1e2, 1e5, 1e3},
                         {"0.75", 1e-5, 7e-2, 5e-2, 1e9, 1e13, 1e12},
                         {"0.9", 4e-5, 0.3, 3, 1e14, 1e17, 1e16},
                         {"0.99", 1e-4, 1.3, 1e3, 1e17, 1e21, 1e20}}) {
    const std::string regime = std::string("corr_keys:rho=") + row.rho;
    const auto add = [&](const std::string& words, double about) {
      cases.push_back({regime, words, about / 20, about < 1 ? about * 10 : anything});
    };
    add("inverse=doubling:16", row.fp32_16);
    add("inverse=doubling:16" + fp16, row.fp16_16);
    add("inverse=doubling:32", row.fp32_32);
    add("inverse=doubling:32" + tf32, row.tf32_32);
    add("inverse=doubling:32" + bf16, row.bf16_32);
    add("inverse=doubling:64", row.fp32_64);
  }
  hold(cases);
}

TEST_CASE("substitution, blocks and Horner survive keys alike", "[formulations]") {
  const std::string blocks_16 = "inverse=blocks:16", horner_16 = "inverse=horner:16",
                    horner_32 = "inverse=horner:32";
  std::vector<Case> cases;
  for (const char* const rho : {"0", "0.5", "0.9", "0.99", "0.9999"}) {
    const std::string regime = std::string("corr_keys:rho=") + rho;
    for (const char* const inverse : {"inverse=substitution", "inverse=blocks:16", "inverse=blocks:32",
                                      "inverse=horner:16", "inverse=horner:32"})
      cases.push_back({regime, inverse, 0, 6e-6});
    for (const std::string& inverse : {blocks_16, horner_16, horner_32}) {
      if (inverse != horner_32) cases.push_back({regime, inverse + fp16, 0, 6e-3});
      cases.push_back(
          {regime, inverse + tf32, 0, 3e-2});  // truncated: twice the error of rounding, one-sided
      cases.push_back({regime, inverse + bf16, 0, 6e-2});
    }
    cases.push_back({regime, "inverse=blocks:16 storage=tf32@products", 0, 7e-3});
    cases.push_back({regime, "inverse=blocks:16 storage=bf16@products", 0, 5e-2});
  }
  hold(cases);
}

TEST_CASE("Horner over 32 rows overflows fp16 on keys alike: its partial sums alternate", "[formulations]") {
  // I - L + L^2 - ... grows like the binomials of 31 before it comes back. In bf16, or over 16 rows, it has
  // room.
  hold({{"corr_keys:rho=0.5", "inverse=horner:32" + fp16, 0, 6e-3},
        {"corr_keys:rho=0.9", "inverse=horner:32" + fp16, anything, anything},
        {"corr_keys:rho=0.99", "inverse=horner:32" + fp16, anything, anything},
        {"corr_keys:rho=0.99", "inverse=horner:32" + bf16, 0, 6e-2}});
}

TEST_CASE("rho and beta only fail together", "[formulations]") {
  // In the simulations doubling:16 in fp16 stays below 4.4e-3 up to rho 0.9999 when beta is 0.5.
  hold({{"corr_keys:rho=0.9999,beta=0.5", "inverse=doubling:16" + fp16, 0, 2e-2},
        {"corr_keys:rho=0.9999,beta=0.9997", "inverse=doubling:16" + fp16, 0.1, anything}});
}

TEST_CASE("identical keys are lost to doubling in fp16 from the first block on", "[formulations]") {
  std::vector<Case> cases;
  for (const char* const regime : {"identical_keys:T=16,H=1", "identical_keys:T=64,H=1"}) {
    cases.push_back({regime, "inverse=doubling:16" + fp16, 0.05, anything});
    for (const char* const inverse : {"inverse=substitution", "inverse=blocks:16", "inverse=horner:16"})
      cases.push_back({regime, inverse, 0, 1e-5});
    for (const char* const inverse : {"inverse=blocks:16", "inverse=horner:16"}) {
      cases.push_back({regime, inverse + fp16, 0, 1e-2});
      cases.push_back({regime, inverse + bf16, 0, 1e-1});
    }
    cases.push_back({regime, "inverse=blocks:16 storage=bf16@products", 0, 1e-1});
  }
  hold(cases);
}

TEST_CASE("saturated gates hide doubling's fault, slow channels show it", "[formulations]") {
  hold({{"k3_layer0:H=1", "inverse=doubling:32" + bf16, 0, 3e-5},
        {"k3_layer0:H=1", "inverse=horner:32" + bf16, 0, 3e-5},
        {"k3_layer1:H=1", "inverse=substitution", 0, 1e-5},
        {"k3_layer1:H=1", "inverse=horner:32" + bf16, 0, 1e-2},
        {"k3_layer1:H=1", "inverse=blocks:16" + bf16, 0, 1e-2},
        {"k3_layer1:H=1", "inverse=doubling:32" + bf16, 2e-2, anything},
        {"k3_layer1:H=1", "inverse=doubling:32" + tf32, 2e-3, anything},
        {"k3_slow:H=1", "inverse=substitution", 0, 1e-5},
        {"k3_slow:H=1", "inverse=horner:32" + bf16, 0, 1.5e-2},
        {"k3_slow:H=1", "inverse=doubling:32" + bf16, 1e3, anything},
        {"k3_slow:H=1", "inverse=doubling:32" + tf32, 1, anything}});
}

TEST_CASE(
    "powers up to the fourth lose what doubling loses, nested blocks nothing: tt-metal#54813, #55420, #55626",
    "[formulations]") {
  // Of 18 layers of Kimi K3 on a device Paterson and Stockmeyer kept 8 (doubling: 1), nesting all.
  const std::string paterson = "inverse=paterson:32", nested = "inverse=nested";
  hold({{"k3_layer0:H=1", paterson + bf16, 0, 3e-5},
        {"k3_layer1:H=1", paterson, 1e-6, 1e-5},
        {"k3_layer1:H=1", paterson + bf16, 2e-2, 0.2},
        {"k3_layer1:H=1", nested + bf16, 0, 1e-2},
        {"k3_slow:H=1", "inverse=paterson:16 merge=halves" + bf16, 1e-2, 3e-2},
        {"k3_slow:H=1", paterson + bf16, 10, anything},
        {"k3_slow:H=1", nested + bf16, 0, 1.5e-2},
        {"corr_keys:rho=0.99", "inverse=paterson:16", 2e-5, 1e-3},
        {"corr_keys:rho=0.99", nested, 0, 6e-6},
        {"corr_keys:rho=0.99", nested + bf16, 0, 6e-2},
        {"gate_zero:H=1", nested, 0, 2e-6},
        {"gate_zero:H=1,T=150", "inverse=paterson:16", 0, 1e-3}});
}

TEST_CASE(
    "an anchor at half of the bound has room for twice the gates of the first row, and reads nothing ahead",
    "[formulations]") {
  kda::Problem problem =
      test::make_problem({.T = 64, .gate = kda::Gate::lower_bound, .A_log = false, .dt_bias = false});
  problem.options.lower_bound = -8;  // 15 rows of it are e^-120, half of them e^-60
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, 4 + problem.g.value(i));
  const test::WholeOracle oracle = test::whole_oracle(problem);
  CHECK(error_of(problem, oracle, "chunk", "decay=anchor-first:16") == anything);
  CHECK(error_of(problem, oracle, "chunk", "decay=anchor-bound:16") < 1e-5);
  CHECK(error_of(problem, oracle, "chunk", "decay=anchor-bound:16 gates=log2 exponential=cuda-fast") < 1e-4);

  const auto differing_before_last = [&](const char* decay) {
    kda::RunOptions options = test::default_options(problem, "chunk", DType::fp32, {decay});
    const tensor::Tensor before = test::run(problem, "chunk", options).o;
    kda::Problem later = kda::clone(problem);
    const std::size_t last = 56;  // the middle row of a block: what rows before it are counted from
    for (std::size_t k = 0; k < 8; ++k) later.g.set(last * 8 + k, -3);
    const tensor::Tensor after = test::run(later, "chunk", options).o;
    std::size_t count = 0;
    for (std::size_t i = 0; i < last * 6; ++i) count += before.value(i) != after.value(i);
    return count;
  };
  CHECK(differing_before_last("decay=anchor-mid:16") > 0);
  CHECK(differing_before_last("decay=anchor-bound:16") == 0);
}

TEST_CASE("without decay and with beta near 2 powers of L grow without bound", "[formulations]") {
  hold({{"gate_zero:H=1", "inverse=substitution", 0, 2e-6},
        {"gate_zero:H=1", "inverse=blocks:16 storage=tf32@products", 0, 6e-3},
        {"gate_zero:H=1", "inverse=doubling:64", 1e3, anything},
        {"neg_eigval:H=1,beta=1.99", "inverse=substitution", 0, 2e-5},
        {"neg_eigval:H=1,beta=1", "inverse=doubling:16" + fp16, 0.05, anything},
        {"neg_eigval:H=1,beta=1.5", "inverse=doubling:16" + fp16, 1e10, anything},
        {"neg_eigval:H=1,beta=1.99", "inverse=doubling:16" + fp16, anything, anything}});
}

TEST_CASE("sums of gates in less than fp32 lose what follows a spike", "[formulations]") {
  hold({{"spike_then_slow:T=128,H=1,s=-16", "decay=pair", 0, 3e-5},
        {"spike_then_slow:T=128,H=1,s=-16", "decay=pair storage=tf32@g_cumsum", 2e-3, anything},
        {"spike_then_slow:T=128,H=1,s=-16", "decay=pair storage=bf16@g_cumsum", 2e-2, anything},
        {"spike_then_slow:T=128,H=1,s=-100", "decay=pair", 0, 3e-4},
        {"spike_then_slow:T=128,H=1,s=-100", "decay=pair reduction=exact", 0, 1.5e-5},
        {"spike_then_slow:T=128,H=1,s=-100", "decay=pair storage=tf32@g_cumsum", 1e-2, anything},
        {"spike_then_slow:T=128,H=1,s=-100", "decay=pair storage=bf16@g_cumsum", 0.1, anything}});
}

TEST_CASE("a decay or a carried state in bf16 spoils slow memories", "[formulations]") {
  for (const auto& [g, decay] : {std::pair{"-8e-5", 0.07}, {"-1e-3", 0.7}, {"-3e-3", 0.15}, {"-1e-2", 0.1}}) {
    const std::string regime = std::string("slow_alpha:H=1,g=") + g;
    hold({{regime, "storage=none", 0, 2e-5},
          {regime, "storage=bf16@decay", decay / 2, decay * 2},
          {regime, "storage=bf16@carry", 5e-3, 0.1}},
         "recurrent");
    hold({{regime, "storage=none", 0, 3e-6}, {regime, "storage=bf16@carry", 5e-4, 2e-2}});
  }
}

TEST_CASE("clamped exponents are wrong and never infinite", "[formulations]") {
  hold({{"lb_const_sweep:H=1,K=64,V=64,g=-5.8", "decay=clamp:126", 0, 2e-6},
        {"lb_const_sweep:H=1,K=64,V=64,g=-6", "decay=clamp:126", 2e-3, 4e-2},
        {"lb_const_sweep:H=1,K=64,V=64,g=-11", "decay=clamp:126", 0.5, 3},
        {"ramp_clamp:H=1,drop=8.4", "decay=clamp:126", 0, 2e-5},
        {"ramp_clamp:H=1,drop=8.5", "decay=clamp:126", 2e-4, 1e-2},
        {"ramp_clamp:H=1,drop=9", "decay=clamp:126", 0.05, 0.5},
        {"ramp_clamp:H=1,drop=12", "decay=clamp:126", 0.5, 2},
        {"mask_m1000:H=1", "decay=clamp:126", 0.5, 3},
        {"unbounded_softplus:H=1", "decay=clamp:126", 0.05, 0.5},
        // Tight clamps are wrong on gates that occur.
        {"lb_real:T=128", "decay=clamp:86", 2e-3, 0.5}});
}

TEST_CASE("flushed exponentials lose factors that gradual underflow keeps, silently", "[formulations]") {
  hold({{"ftz_window:H=1", "decay=anchor-mid:64", 0, 2e-6},
        {"ftz_window:H=1", "decay=anchor-mid:64 exponential=cuda", 0, 2e-6},
        {"ftz_window:H=1", "decay=anchor-mid:64 exponential=flush", 1e-2, 0.5},
        {"ftz_window:H=1,g=-2.7", "decay=anchor-mid:64 exponential=flush", 0, 2e-6}});
}

}  // namespace formulations_tests
