#include "kda/oracle.hpp"

#include <cmath>

#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

using namespace kda_check;
using test::Big;
using test::ProblemSpec;

namespace {

/// The recurrence at 200 bits, written from its definition (docs/kda.md, "Recurrent forward"), one number at
/// a time.
struct BigRecurrence {
  explicit BigRecurrence(const kda::Problem& problem) : p(problem), d(problem.dimensions()) {
    o.resize(d.B * d.T * d.HV * d.V);
    state.resize(d.N * d.HV * d.K * d.V);
    for (const kda::Sequence& s : p.sequences())
      for (std::size_t head = 0; head < d.HV; ++head) run(s, head);
  }

  std::vector<Big> row(const tensor::Tensor& tensor, const kda::Sequence& s, std::size_t t,
                       std::size_t head) const {
    std::vector<Big> values;
    for (std::size_t k = 0; k < d.K; ++k)
      values.emplace_back(tensor.value(((s.batch * d.T + t) * d.H + head / (d.HV / d.H)) * d.K + k));
    if (!p.options.qk_l2norm) return values;
    Big sum = Big(1.0) / Big(1e6);
    for (const Big& value : values) sum = sum + value * value;
    for (Big& value : values) value = value / sqrt(sum);
    return values;
  }

  Big log_decay(const kda::Sequence& s, std::size_t t, std::size_t head, std::size_t k) const {
    const Big raw(p.g.value(((s.batch * d.T + t) * d.HV + head) * d.K + k));
    if (p.options.gate == kda::Gate::none) return raw;
    const Big y = p.dt_bias ? raw + Big(p.dt_bias->value(head * d.K + k)) : raw;
    const Big amplitude = p.A_log ? exp(Big(p.A_log->value(head))) : Big(1.0);
    if (p.options.gate == kda::Gate::softplus) return -(amplitude * test::softplus(y));
    return Big(*p.options.lower_bound) * test::sigmoid(amplitude * y);
  }

  Big beta(const kda::Sequence& s, std::size_t t, std::size_t head) const {
    const Big stored(p.beta.value((s.batch * d.T + t) * d.HV + head));
    if (!p.options.beta_sigmoid) return stored;
    return Big(p.options.allow_neg_eigval ? 2.0 : 1.0) * test::sigmoid(stored);
  }

  std::size_t state_at(const kda::Sequence& s, std::size_t head, std::size_t k, std::size_t v) const {
    return (s.index * d.HV + head) * d.K * d.V + (p.options.state_v_first ? v * d.K + k : k * d.V + v);
  }

  void run(const kda::Sequence& s, std::size_t head) {
    std::vector<std::vector<Big>> S(d.K, std::vector<Big>(d.V));
    for (std::size_t k = 0; k < d.K; ++k)
      for (std::size_t v = 0; v < d.V; ++v)
        S[k][v] = p.initial_state ? Big(p.initial_state->value(state_at(s, head, k, v))) : Big(0.0);
    for (std::size_t t = s.begin; t < s.end; ++t) {
      const std::vector<Big> q = row(p.q, s, t, head), key = row(p.k, s, t, head);
      const Big strength = beta(s, t, head), scale(p.scale());
      for (std::size_t k = 0; k < d.K; ++k) {
        const Big decay = exp(log_decay(s, t, head, k));
        for (std::size_t v = 0; v < d.V; ++v) S[k][v] = decay * S[k][v];
      }
      for (std::size_t v = 0; v < d.V; ++v) {
        const std::size_t at = ((s.batch * d.T + t) * d.HV + head) * d.V + v;
        Big error(p.v.value(at));
        for (std::size_t k = 0; k < d.K; ++k) error = error - key[k] * S[k][v];
        for (std::size_t k = 0; k < d.K; ++k) S[k][v] = S[k][v] + key[k] * (strength * error);
        Big output(0.0);
        for (std::size_t k = 0; k < d.K; ++k) output = output + q[k] * S[k][v];
        o[at] = scale * output;
      }
    }
    for (std::size_t k = 0; k < d.K; ++k)
      for (std::size_t v = 0; v < d.V; ++v) state[state_at(s, head, k, v)] = S[k][v];
  }

  const kda::Problem& p;
  const kda::Dimensions d;
  std::vector<Big> o, state;
};

/// The largest |oracle - truth| / magnitude.
double worst(const std::vector<numeric::DoubleDouble>& got, const std::vector<Big>& truth,
             const std::vector<double>& magnitude) {
  double error = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double apart = abs(Big(got[i]) - truth[i]).to_double();
    if (apart > 0) error = std::max(error, apart / magnitude[i]);
  }
  return error;
}

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
  const kda::Problem problem = test::make_problem(spec);
  const test::WholeOracle one = test::whole_oracle(problem, 1);
  for (const int threads : {2, 5}) {
    const test::WholeOracle many = test::whole_oracle(problem, threads);
    for (std::size_t i = 0; i < one.o.size(); ++i)
      REQUIRE((one.o[i].hi == many.o[i].hi && one.o[i].lo == many.o[i].lo));
    CHECK(one.o_magnitude == many.o_magnitude);
    CHECK(one.state_magnitude == many.state_magnitude);
  }
}
