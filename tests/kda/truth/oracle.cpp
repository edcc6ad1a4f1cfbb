#include "kda/truth/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "kda/regimes/regimes.hpp"
#include "support/big_recurrence.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace oracle_tests {

using namespace kda_check;
using test::BigRecurrence;
using test::ProblemSpec;
using test::worst;

namespace {

std::vector<std::pair<const char*, ProblemSpec>> every_option() {
  std::vector<std::pair<const char*, ProblemSpec>> specs;
  const auto add = [&](const char* name, auto change) {
    ProblemSpec spec;
    change(spec);
    specs.emplace_back(name, spec);
  };
  add("plain", [](ProblemSpec&) {});
  add("no initial state", [](ProblemSpec& s) { s.initial_state = false; });
  add("fp64 inputs", [](ProblemSpec& s) { s.dtype = numeric::DType::fp64; });
  add("bf16 inputs", [](ProblemSpec& s) { s.dtype = numeric::DType::bf16; });
  add("fp16 inputs, K no power of two",
      [](ProblemSpec& s) { s.dtype = numeric::DType::fp16, s.K = 13, s.V = 17; });
  add("l2 norm", [](ProblemSpec& s) { s.qk_l2norm = true; });
  add("softplus gate", [](ProblemSpec& s) { s.gate = kda::Gate::softplus; });
  add("softplus gate without bias", [](ProblemSpec& s) { s.gate = kda::Gate::softplus, s.dt_bias = false; });
  add("lower-bound gate", [](ProblemSpec& s) { s.gate = kda::Gate::lower_bound; });
  add("lower-bound gate without A_log",
      [](ProblemSpec& s) { s.gate = kda::Gate::lower_bound, s.A_log = false; });
  add("sigmoid beta", [](ProblemSpec& s) { s.beta_sigmoid = true; });
  add("negative eigenvalues", [](ProblemSpec& s) { s.beta_sigmoid = s.allow_neg_eigval = true; });
  add("V-first state", [](ProblemSpec& s) { s.state_v_first = true; });
  add("GVA and batch", [](ProblemSpec& s) { s.B = 2, s.H = 2, s.HV = 4, s.T = 9; });
  add("packed, one sequence empty", [](ProblemSpec& s) { s.T = 40, s.cu_seqlens = {0, 3, 3, 37, 38, 40}; });
  add("beyond one block, slow decay", [](ProblemSpec& s) { s.T = 80, s.gate_size = 0.01; });
  add("strong decay", [](ProblemSpec& s) { s.gate_size = 40; });
  add("one decay for all K, softplus", [](ProblemSpec& s) {
    s.scalar_decay = s.qk_l2norm = s.beta_sigmoid = true, s.gate = kda::Gate::softplus, s.H = 2, s.HV = 4;
  });
  add("betas of columns", [](ProblemSpec& s) {
    s.strength = kda::Strength::value, s.beta_sigmoid = s.allow_neg_eigval = true, s.V = 11;
  });
  add("erase and write gates", [](ProblemSpec& s) {
    s.strength = kda::Strength::gates, s.qk_l2norm = true, s.T = 40, s.dtype = numeric::DType::fp64;
  });
  return specs;
}

}  // namespace

TEST_CASE("the oracle agrees with MPFR at 200 bits to 1e-28 of the magnitude", "[oracle]") {
  for (const auto& [name, spec] : every_option()) {
    const kda::Problem problem = test::make_problem(spec);
    const BigRecurrence truth(problem);
    const test::WholeOracle oracle = test::whole_oracle(problem);
    INFO(name);
    CHECK(worst(oracle.o, truth.o, oracle.o_magnitude) <= 1e-28);
    CHECK(worst(oracle.final_state, truth.state, oracle.state_magnitude) <= 1e-28);
  }
}

TEST_CASE("the fp64 oracle is as exact as fp64 allows", "[oracle]") {
  for (const auto& [name, spec] : every_option()) {
    const kda::Problem problem = test::make_problem(spec);
    const BigRecurrence truth(problem);
    const test::WholeOracle oracle = test::whole_oracle(problem, 1, kda::OraclePrecision::fp64);
    INFO(name);
    CHECK(worst(oracle.o, truth.o, oracle.o_magnitude) <= 32 * 0x1p-53);
    CHECK(worst(oracle.final_state, truth.state, oracle.state_magnitude) <= 32 * 0x1p-53);
  }
}

TEST_CASE("the recurrence in fp64 is nowhere further from the truth than it says", "[oracle]") {
  std::vector<std::pair<std::string, kda::Problem>> problems;
  const auto seed = std::random_device{}() % 100'000;
  for (const auto& [name, spec] : every_option()) problems.emplace_back(name, test::make_problem(spec));
  for (const kda::Recipe& recipe : kda::recipes())
    for (const char* const size : {"T=1,H=1", "T=200,H=1"})
      for (const char* const dtype : {"fp32", "bf16"}) {
        const std::string text = fmt::format("{}:{},dtype={},seed={}", recipe.name, size, dtype, seed);
        problems.emplace_back(text, kda::parse_regime(text).build());
      }
  std::size_t stated = 0;
  for (const auto& [name, problem] : problems) {
    const test::WholeOracle exact = test::whole_oracle(problem),
                            fp64 = test::whole_oracle(problem, 1, kda::OraclePrecision::fp64);
    INFO(name);
    if (!std::isfinite(fp64.error)) continue;  // nothing is stated
    ++stated;
    const auto largest = [](const auto& got, const auto& truth, const std::vector<double>& magnitudes) {
      double most = 0;
      for (std::size_t i = 0; i < got.size(); ++i)
        if (const double off = std::fabs((got[i] - truth[i]).hi); off > 0x1p-900)
          most = std::max(most, off / magnitudes[i]);
      return most;
    };
    const double off = std::max(largest(fp64.o, exact.o, fp64.o_magnitude),
                                largest(fp64.final_state, exact.final_state, fp64.state_magnitude));
    CHECK(off <= fp64.error);
  }
  CHECK(stated > problems.size() * 3 / 4);
}

TEST_CASE("magnitudes are never below the values they belong to", "[oracle]") {
  for (const auto& [name, spec] : every_option()) {
    const test::WholeOracle oracle = test::whole_oracle(test::make_problem(spec));
    INFO(name);
    for (std::size_t i = 0; i < oracle.o.size(); ++i)
      REQUIRE(oracle.o_magnitude[i] >= std::fabs(oracle.o[i].hi) * (1 - 1e-12));
    for (std::size_t i = 0; i < oracle.final_state.size(); ++i)
      REQUIRE(oracle.state_magnitude[i] >= std::fabs(oracle.final_state[i].hi) * (1 - 1e-12));
  }
}

TEST_CASE("the magnitude of the output is the sum of its absolute terms", "[oracle]") {
  // One token, no state: o = scale * sum_k q_k k_k beta v.
  ProblemSpec spec;
  spec.T = 1, spec.initial_state = false;
  const kda::Problem problem = test::make_problem(spec);
  const test::WholeOracle oracle = test::whole_oracle(problem);
  for (std::size_t v = 0; v < spec.V; ++v) {
    double sum = 0;
    for (std::size_t k = 0; k < spec.K; ++k)
      sum += std::fabs(problem.q.value(k) * problem.k.value(k) * problem.beta.value(0) * problem.v.value(v) *
                       problem.scale());
    CHECK(oracle.o_magnitude[v] == Approx(sum).epsilon(1e-12));
  }
}

TEST_CASE("the magnitude of the state does not grow where the delta rule overwrites the same memory",
          "[oracle]") {
  const kda::Problem problem = test::exact_problem(3000, 16, 8, numeric::DType::fp32);
  const test::WholeOracle oracle = test::whole_oracle(problem);
  for (std::size_t i = 0; i < oracle.final_state.size(); ++i) CHECK(oracle.state_magnitude[i] < 1000);
}

TEST_CASE("a recurrence that overflows gives values that are not finite", "[oracle]") {
  ProblemSpec spec;
  kda::Problem problem = test::make_problem(spec);
  problem.g.set(3 * spec.K, 720.0);  // a growing gate: exp(720) is infinite in fp64
  const test::WholeOracle oracle = test::whole_oracle(problem);
  std::size_t not_finite = 0;
  for (const auto& value : oracle.o) not_finite += !std::isfinite(value.hi);
  CHECK(not_finite > 0);
  for (std::size_t i = 0; i < 3 * spec.V; ++i)
    CHECK(std::isfinite(oracle.o[i].hi));  // nothing before it is touched
}

TEST_CASE("the oracle gives the same bits on any number of threads", "[oracle]") {
  ProblemSpec spec;
  spec.B = 2, spec.T = 150, spec.V = 70, spec.K = 20, spec.qk_l2norm = true, spec.gate = kda::Gate::softplus;
  ProblemSpec one_head = spec;  // which all share; so long that they meet in between
  one_head.B = 1, one_head.T = 1500, one_head.H = one_head.HV = 1, one_head.V = 64, one_head.K = 64;
  for (const ProblemSpec& of : {spec, one_head}) {
    const kda::Problem problem = test::make_problem(of);
    const test::WholeOracle one = test::whole_oracle(problem, 1);
    for (const int threads : {2, 5}) {
      const test::WholeOracle many = test::whole_oracle(problem, threads);
      for (std::size_t i = 0; i < one.o.size(); ++i)
        REQUIRE((one.o[i].hi == many.o[i].hi && one.o[i].lo == many.o[i].lo));
      CHECK(one.o_magnitude == many.o_magnitude);
      CHECK(one.state_magnitude == many.state_magnitude);
    }
  }
}

TEST_CASE("the truth of a head has the same bits whichever heads are asked for", "[oracle]") {
  ProblemSpec spec;
  spec.B = 2, spec.T = 150, spec.H = 3, spec.HV = 6, spec.V = 20, spec.K = 12,
  spec.gate = kda::Gate::softplus;
  const kda::Problem problem = test::make_problem(spec);
  const test::WholeOracle whole = test::whole_oracle(problem);
  for (const kda::HeadRange asked : {kda::HeadRange{1, 3}, kda::HeadRange{5, 6}, kda::HeadRange{4, 99}}) {
    std::size_t elements = 0;
    kda::OracleSink sink;
    sink.output = [&](const kda::OracleOutput& block) {
      REQUIRE(block.heads.first == asked.first);
      REQUIRE(block.heads.last == std::min<std::size_t>(asked.last, spec.HV));
      const std::size_t heads = block.heads.last - block.heads.first;
      for (std::size_t t = 0; t < block.count; ++t)
        for (std::size_t i = 0; i < heads * spec.V; ++i) {
          const std::size_t from = t * heads * spec.V + i,
                            at = ((block.batch * spec.T + block.begin + t) * spec.HV + asked.first) * spec.V +
                                 i;
          REQUIRE((block.hi[from] == whole.o[at].hi && block.lo[from] == whole.o[at].lo));
          REQUIRE(block.magnitude[from] == whole.o_magnitude[at]);
          ++elements;
        }
    };
    sink.state = [&](const kda::OracleState& state) {
      REQUIRE((state.head >= asked.first && state.head < asked.last));
      for (std::size_t i = 0; i < spec.K * spec.V; ++i) {
        const std::size_t at = (state.row * spec.HV + state.head) * spec.K * spec.V + i;
        REQUIRE((state.hi[i] == whole.final_state[at].hi && state.lo[i] == whole.final_state[at].lo));
        ++elements;
      }
    };
    kda::run_oracle(problem, kda::OraclePrecision::double_double, 2, sink, asked);
    const std::size_t heads = std::min<std::size_t>(asked.last, spec.HV) - asked.first;
    CHECK(elements == 2 * heads * (spec.T + spec.K) * spec.V);
  }
}

}  // namespace oracle_tests
