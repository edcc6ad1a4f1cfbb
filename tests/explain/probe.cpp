#include "explain/probe/probe.hpp"

#include <cmath>
#include <functional>

#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

namespace probe_tests {

using namespace kda_check;
using kda::Gate;
using numeric::DType;
using tensor::Tensor;

namespace {

/// A generic case, with the options that a convention is about.
struct Case {
  std::size_t T = 130, K = 48, V = 32, H = 1, HV = 1;
  Gate gate = Gate::none;
  bool l2norm = false, sigmoid = false, doubled = false, v_first = false;
  double scale = 0.2;
  std::vector<std::int64_t> cu_seqlens;
};

kda::Problem problem_of(const Case& c, std::uint64_t seed = 3) {
  test::ProblemSpec spec;
  spec.T = c.T, spec.K = c.K, spec.V = c.V, spec.H = c.H, spec.HV = c.HV;
  spec.gate = c.gate, spec.qk_l2norm = c.l2norm, spec.beta_sigmoid = c.sigmoid;
  spec.allow_neg_eigval = c.doubled, spec.state_v_first = c.v_first, spec.cu_seqlens = c.cu_seqlens;
  kda::Problem problem = test::make_problem(spec, seed);
  test::Random random(seed + 100);
  if (c.gate == Gate::none)
    for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, random.uniform(-1.01, -0.01));
  for (std::size_t i = 0; i < problem.initial_state->size(); ++i)
    problem.initial_state->set(i, 0.5 * random.normal());
  // Unit keys of correlation 0.3; longer where the norm is the kernel's.
  std::vector<double> common(c.K);
  for (double& x : common) x = random.normal();
  for (std::size_t row = 0; row < c.T * c.H; ++row) {
    std::vector<double> key(c.K);
    double squares = 0;
    for (std::size_t k = 0; k < c.K; ++k) {
      key[k] = std::sqrt(0.3) * common[k] + std::sqrt(0.7) * random.normal();
      squares += key[k] * key[k];
    }
    for (std::size_t k = 0; k < c.K; ++k)
      problem.k.set(row * c.K + k, key[k] / std::sqrt(squares) * (c.l2norm ? 1.2 : 0.95));
  }
  problem.options.scale = c.scale;
  return problem;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// A kernel with exactly one mistake, or two ("exp2 and beta_twice"), in plain loops over scalars: double,
/// rounded once at the end. Written from the formulas, and apart from what it tests. `place` is the token of
/// mistakes about one token.
kda::Answer mutant(const kda::Problem& p, const std::string& mistake, DType dtype = DType::fp32,
                   std::size_t place = 0) {
  const auto is = [words = " " + mistake + " "](const std::string& name) {
    return words.find(" " + name + " ") != std::string::npos;
  };
  const kda::Dimensions d = p.dimensions();
  kda::Answer answer;
  answer.o = Tensor("o", dtype, {d.B, d.T, d.HV, d.V});
  const tensor::Shape state_shape =
      p.options.state_v_first ? tensor::Shape{d.N, d.HV, d.V, d.K} : tensor::Shape{d.N, d.HV, d.K, d.V};
  answer.final_state = Tensor("final_state", DType::fp32, state_shape);

  const auto gate = [&](std::size_t b, std::size_t t, std::size_t h, std::size_t k) {
    double x = p.g.value(((b * d.T + t) * d.HV + h) * d.K + k);
    if (p.options.gate == Gate::none || is("gate_raw")) return x;
    const double A = p.A_log && !is("A_log_missing") ? std::exp(p.A_log->value(h)) : 1;
    if (p.dt_bias && !is("dt_bias_missing")) x += p.dt_bias->value(h * d.K + k);
    const double lb = p.options.lower_bound.value_or(-5.0), soft = -A * std::log(1 + std::exp(x));
    if (is("gate_clamped_softplus")) return std::max(lb, soft);
    const bool as_softplus = p.options.gate == Gate::softplus ? !is("gate_lower_bound") : is("gate_softplus");
    return as_softplus ? soft : lb * sigmoid(A * x);
  };
  const auto alpha = [&](const kda::Sequence& s, std::size_t t, std::size_t h, std::size_t k) {
    if (is("gate_late")) {
      if (t == s.begin) return 1.0;
      --t;
    }
    if (is("gate_early")) {
      if (t + 1 == s.end) return 1.0;
      ++t;
    }
    double g = gate(s.batch, t, h, k);
    if (is("gate_mean")) {
      g = 0;
      for (std::size_t i = 0; i < d.K; ++i) g += gate(s.batch, t, h, i) / static_cast<double>(d.K);
    }
    if (is("exp2")) return std::pow(2.0, g);
    if (is("log2e_twice")) return std::exp(g / std::log(2.0));
    if (is("gate_linear")) return g;
    if (is("gate_sign")) return std::exp(-g);
    if (is("gate_missing")) return 1.0;
    return std::exp(g);
  };
  const auto unit_row = [&](const Tensor& x, std::size_t first, std::size_t k) {
    if (!is("l2norm_applied") && (!p.options.qk_l2norm || is("l2norm_missing"))) return x.value(first + k);
    double squares = 1e-6;
    for (std::size_t i = 0; i < d.K; ++i) squares += x.value(first + i) * x.value(first + i);
    return x.value(first + k) / std::sqrt(squares);
  };
  const auto beta_of = [&](std::size_t b, std::size_t t, std::size_t h) {
    double beta = p.beta.value((b * d.T + t) * d.HV + h);
    if (p.options.beta_sigmoid ? !is("beta_raw") : is("beta_sigmoid")) beta = sigmoid(beta);
    const bool doubled = p.options.allow_neg_eigval && !is("beta_not_doubled") && !is("beta_raw");
    if (doubled || is("beta_doubled")) beta *= 2;
    if (is("beta_twice")) beta *= beta;
    return is("beta_missing") ? 1.0 : beta;
  };
  double scale = *p.options.scale;
  if (is("scale_missing")) scale = 1;
  if (is("scale_from_key_width")) scale = 1 / std::sqrt(static_cast<double>(d.K));
  if (is("scale_from_value_width")) scale = 1 / std::sqrt(static_cast<double>(d.V));
  if (is("scale_twice")) scale *= scale;
  if (is("output_doubled")) scale *= 2;
  const bool first_swapped = is("initial_state_transposed") || is("states_transposed");
  const bool last_swapped = is("final_state_transposed") || is("states_transposed");

  for (const kda::Sequence& s : p.sequences())
    for (std::size_t h = 0; h < d.HV; ++h) {
      const std::size_t qh = is("heads_interleaved") ? h % d.H : h * d.H / d.HV;
      const auto at = [&](bool swapped, std::size_t k, std::size_t v) {
        const std::size_t inside = p.options.state_v_first != swapped ? v * d.K + k : k * d.V + v;
        return (s.index * d.HV + h) * d.K * d.V + inside;
      };
      std::vector<std::vector<double>> S(d.K, std::vector<double>(d.V));
      for (std::size_t k = 0; k < d.K; ++k)
        for (std::size_t v = 0; v < d.V; ++v)
          S[k][v] = is("initial_state_missing") ? 0 : p.initial_state->value(at(first_swapped, k, v));
      for (std::size_t t = s.begin; t < s.end; ++t) {
        const bool last = t + 1 == s.end;
        const std::size_t row = ((s.batch * d.T + t) * d.HV + h) * d.V,
                          key = ((s.batch * d.T + t) * d.H + qh) * d.K;
        if (last && is("last_token_dropped")) {
          for (std::size_t v = 0; v < d.V; ++v) answer.o.set(row + v, 0);
          continue;
        }
        std::vector<double> k(d.K), q(d.K), a(d.K);
        for (std::size_t i = 0; i < d.K; ++i) {
          k[i] = unit_row(p.k, key, i), q[i] = scale * unit_row(p.q, key, i), a[i] = alpha(s, t, h, i);
        }
        const double beta = beta_of(s.batch, t, h);
        for (std::size_t v = 0; v < d.V; ++v) {
          double undecayed = 0, prediction = 0, output = 0;
          for (std::size_t i = 0; i < d.K; ++i) {
            undecayed += k[i] * S[i][v];
            S[i][v] *= a[i];
            prediction += k[i] * S[i][v];
          }
          double value = p.v.value(row + v);
          if (is("beta_twice_on_value")) value *= beta;
          if (is("predict_before_decay")) prediction = undecayed;
          const double update = is("write_lost") && t == place ? 0 : beta * (value - prediction);
          for (std::size_t i = 0; i < d.K; ++i) {
            S[i][v] += k[i] * update;
            output += q[i] * S[i][v];
          }
          if (last && is("last_row_unwritten")) output = 0;
          answer.o.set(row + v, output);
        }
        if (last && is("last_row_stale"))
          for (std::size_t v = 0; v < d.V; ++v) answer.o.set(row + v, answer.o.value(row - d.HV * d.V + v));
      }
      for (std::size_t k = 0; k < d.K; ++k)
        for (std::size_t v = 0; v < d.V; ++v) answer.final_state.set(at(last_swapped, k, v), S[k][v]);
    }
  return answer;
}

explain::ProbeFinding probed(const kda::Problem& problem, const kda::Answer& answer,
                             const explain::FailurePlace& place = {}) {
  const bool bf16 = answer.o.dtype() == DType::bf16;
  return explain::probe(problem, {&answer.o, &answer.final_state, bf16 ? 0.0117 : 2e-6, 2e-6}, place, 2);
}

std::string names(const explain::ProbeFinding& finding) {
  std::string text;
  for (const explain::Explanation& match : finding.matches)
    text += (text.empty() ? "" : " ") + match.convention;
  return text;
}

/// The generic case, with what a convention needs in order to apply.
Case case_for(const std::string& name) {
  Case c;
  const auto one_of = [&](std::initializer_list<const char*> list) {
    return std::any_of(list.begin(), list.end(), [&](const char* item) { return name == item; });
  };
  if (one_of({"gate_raw", "gate_clamped_softplus", "gate_softplus", "A_log_missing", "dt_bias_missing"}))
    c.gate = Gate::lower_bound;
  if (name == "gate_lower_bound") c.gate = Gate::softplus;
  c.sigmoid = one_of({"beta_raw", "beta_not_doubled"});
  c.doubled = name == "beta_not_doubled";
  c.l2norm = name == "l2norm_missing";
  if (name == "heads_interleaved") c.H = 2, c.HV = 4;
  return c;
}

}  // namespace

TEST_CASE("the scalar kernel of these tests without a mistake is right", "[explain][probe]") {
  for (const char* const name :
       {"exp2", "gate_raw", "gate_lower_bound", "beta_not_doubled", "l2norm_missing"}) {
    const kda::Problem problem = problem_of(case_for(name));
    const test::WholeOracle oracle = test::whole_oracle(problem, 2);
    const kda::Answer answer = mutant(problem, "none");
    CHECK(test::rms_ratio(answer.o, oracle.o) < 1e-7);
    CHECK(test::rms_ratio(answer.final_state, oracle.final_state) < 1e-7);
    CHECK(names(probed(problem, answer)).empty());
  }
}

TEST_CASE("every convention is named when a kernel makes exactly this mistake", "[explain][probe]") {
  for (const explain::Convention& convention : explain::conventions()) {
    const std::string name(convention.name);
    const kda::Problem problem = problem_of(case_for(name));
    REQUIRE(convention.applies(problem));
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      const kda::Answer answer = mutant(problem, name, dtype, 64);
      const explain::ProbeFinding finding = probed(problem, answer);
      INFO(name << ' ' << numeric::name_of(dtype)
                << (finding.nearest ? ", nearest " + finding.nearest->convention : std::string()));
      CHECK(names(finding) == name);
      if (finding.matches.empty()) continue;
      CHECK(finding.matches[0].after * 20 < finding.matches[0].before);
      if (name == "write_lost") CHECK_THAT(finding.matches[0].meaning, ContainsSubstring("(t=64)"));
    }
  }
}

TEST_CASE("a state transposed is named in both layouts, square or not", "[explain][probe]") {
  for (const bool v_first : {false, true})
    for (const std::size_t V : {48, 32})
      for (const char* const name :
           {"initial_state_transposed", "final_state_transposed", "states_transposed"}) {
        Case c;
        c.T = 12, c.V = V, c.v_first = v_first;
        const kda::Problem problem = problem_of(c);
        INFO(name << ' ' << V << ' ' << v_first);
        CHECK(names(probed(problem, mutant(problem, name))) == name);
      }
}

TEST_CASE("what the answer cannot tell apart is named together", "[explain][probe]") {
  const kda::Problem problem = problem_of({});
  const kda::Answer answer = mutant(problem, "last_token_dropped");
  const explain::ProbeFinding finding = explain::probe(problem, {&answer.o, nullptr, 2e-6, 0}, {}, 2);
  CHECK(names(finding) == "last_token_dropped last_row_unwritten");
}

TEST_CASE("noise is explained by no convention", "[explain][probe]") {
  const kda::Problem problem = problem_of({});
  for (const double size : {1e-5, 1e-2, 1.0}) {
    kda::Answer answer = mutant(problem, "none");
    test::Random random(9);
    for (Tensor* const tensor : {&answer.o, &answer.final_state})
      for (std::size_t i = 0; i < tensor->size(); ++i)
        tensor->set(i, tensor->value(i) * (1 + size * random.normal()));
    const explain::ProbeFinding finding = probed(problem, answer);
    INFO(size);
    CHECK(names(finding).empty());
    CHECK(finding.conventions > 25);
  }
}

TEST_CASE("two mistakes at once are named together", "[explain][probe]") {
  const kda::Problem problem = problem_of({});
  for (const char* const both : {"exp2 and beta_twice", "gate_missing and final_state_transposed",
                                 "scale_missing and output_doubled", "log2e_twice and initial_state_missing"})
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      INFO(both << numeric::name_of(dtype));
      CHECK(names(probed(problem, mutant(problem, both, dtype))) == both);
    }
}

TEST_CASE("what leaves more than the limits allow is the nearest and no explanation", "[explain][probe]") {
  const kda::Problem problem = problem_of({});
  kda::Problem rescaled = problem_of({});
  for (std::size_t i = 0; i < problem.g.size(); ++i) rescaled.g.set(i, -0.001 * problem.g.value(i));
  const explain::ProbeFinding finding = probed(problem, mutant(rescaled, "none"));
  CHECK(names(finding).empty());
  REQUIRE(finding.nearest);
  CHECK(finding.nearest->convention == "gate_missing");
  CHECK(finding.nearest->after * 30 < finding.nearest->before);
}

TEST_CASE("a mistake and something that is no convention are explained by none", "[explain][probe]") {
  const kda::Problem problem = problem_of({});
  kda::Answer answer = mutant(problem, "exp2");
  for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, answer.o.value(i) * 1.1);
  CHECK(names(probed(problem, answer)).empty());
}

TEST_CASE("a failure late in a long sequence is looked at where it is", "[explain][probe]") {
  Case c;
  c.T = 2100, c.K = 16, c.V = 8;
  const kda::Problem problem = problem_of(c);
  for (const char* const name : {"exp2", "last_row_stale", "last_token_dropped", "final_state_transposed",
                                 "write_lost", "gate_late"}) {
    const explain::ProbeFinding finding = probed(problem, mutant(problem, name, DType::fp32, 1900));
    INFO(name << " t=" << finding.begin << ".." << finding.end);
    CHECK(names(finding) == name);
    CHECK(finding.end - finding.begin <= 256);
  }
}

TEST_CASE("a mistake is named from the tokens before the answer overflows", "[explain][probe]") {
  const kda::Problem problem = problem_of({});
  kda::Answer answer = mutant(problem, "exp2");
  for (std::size_t i = 90 * 32; i < answer.o.size(); ++i) answer.o.set(i, std::nan(""));
  for (std::size_t i = 0; i < answer.final_state.size(); ++i) answer.final_state.set(i, HUGE_VAL);
  const explain::ProbeFinding finding = probed(problem, answer);
  CHECK(names(finding) == "exp2");
  CHECK(finding.end == 90);
  for (std::size_t i = 0; i < answer.o.size(); ++i) answer.o.set(i, std::nan(""));
  CHECK(names(probed(problem, answer)).empty());
}

TEST_CASE("an answer that is right up to its first NaN is explained by no convention", "[explain][probe]") {
  const kda::Problem problem = test::exact_problem(64, 16, 8, DType::fp32);
  kda::Answer answer = test::run(problem, "recurrent", DType::fp32);
  for (std::size_t i = 30 * 8; i < answer.o.size(); ++i) answer.o.set(i, std::nan(""));
  const explain::ProbeFinding finding = probed(problem, answer);
  CHECK(names(finding).empty());
  CHECK(!finding.nearest);
  CHECK(finding.end == 30);
}

TEST_CASE("values whose squares overflow do not confuse the order of the conventions", "[explain][probe]") {
  Case c;
  c.T = 700, c.K = 8, c.V = 8;
  const kda::Problem problem = problem_of(c);
  CHECK(names(probed(problem, mutant(problem, "exp2", DType::fp64))) == "exp2");
}

TEST_CASE("the sequence of a packed batch that failed is the one looked at", "[explain][probe]") {
  Case c;
  c.T = 60, c.cu_seqlens = {0, 25, 25, 60};
  const kda::Problem problem = problem_of(c);
  const kda::Answer right = mutant(problem, "none"), wrong = mutant(problem, "initial_state_missing");
  kda::Answer answer = mutant(problem, "none");
  for (std::size_t i = 25 * 32; i < answer.o.size(); ++i) answer.o.set(i, wrong.o.value(i));
  for (std::size_t i = 2 * 48 * 32; i < answer.final_state.size(); ++i)
    answer.final_state.set(i, wrong.final_state.value(i));
  CHECK(names(probed(problem, answer, {2, 0, 5})) == "initial_state_missing");
  CHECK(names(probed(problem, answer, {0, 0, 5})).empty());
}

}  // namespace probe_tests
