// Inputs so large that a gate, a sigmoid or a norm is at its limit, infinity included: a problem with them is
// the problem in which the limits are written down, bit for bit in the oracles, and to a rounding in fp64.
#include <cmath>
#include <utility>

#include "kda/head/head_io.hpp"
#include "kda/truth/gradient_oracle.hpp"
#include "kda/truth/stage_oracle.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

namespace infinite_inputs_tests {

using namespace kda_check;
using kda::Gradient;
using numeric::DType;

namespace {

constexpr double inf = HUGE_VAL;

struct Twin {
  const char* name;
  kda::Problem given, plain;  ///< with the options; with what they come to, and no options
  bool chunk_holds = true;    ///< no gate of -inf, whose sums no chunk form can tell apart
};

test::ProblemSpec spec(void (*change)(test::ProblemSpec&)) {
  test::ProblemSpec s;
  s.T = 20, s.H = 1, s.HV = 2, s.K = 4, s.V = 5, s.dtype = DType::fp64, s.chunk_size = 16;
  change(s);
  return s;
}

/// The same inputs without gate, norm and sigmoid.
kda::Problem without_options(const kda::Problem& problem) {
  kda::Problem plain = kda::clone(problem);
  plain.options.gate = kda::Gate::none;
  plain.options.lower_bound.reset();
  plain.options.qk_l2norm = plain.options.beta_sigmoid = plain.options.allow_neg_eigval = false;
  plain.A_log.reset(), plain.dt_bias.reset();
  return plain;
}

/// Element by element one of the pairs (stored, what it comes to).
void set_both(tensor::Tensor& given, tensor::Tensor& plain,
              const std::vector<std::pair<double, double>>& pairs) {
  test::Random random(3);
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto& [stored, value] = pairs[random.below(pairs.size())];
    given.set(i, stored);
    plain.set(i, value);
  }
}

Twin gate_twin(const char* name, kda::Problem given, bool chunk_holds, double A_log,
               const std::vector<std::pair<double, double>>& gates) {
  for (std::size_t h = 0; h < 2; ++h) given.A_log->set(h, A_log);
  kda::Problem plain = without_options(given);
  set_both(given.g, plain.g, gates);
  given.validate(), plain.validate();
  return {name, std::move(given), std::move(plain), chunk_holds};
}
Twin softplus_twin(double A_log, const std::vector<std::pair<double, double>>& gates) {
  const auto change = [](test::ProblemSpec& s) { s.gate = kda::Gate::softplus; };
  return gate_twin("softplus gate", test::make_problem(spec(change)), false, A_log, gates);
}
Twin bounded_twin(double A_log, const std::vector<std::pair<double, double>>& gates) {
  const auto change = [](test::ProblemSpec& s) { s.gate = kda::Gate::lower_bound, s.dt_bias = false; };
  return gate_twin("bounded gate", test::make_problem(spec(change)), true, A_log, gates);
}

std::vector<Twin> twins() {
  std::vector<Twin> list;
  list.push_back(softplus_twin(0, {{inf, -inf}, {-inf, 0}, {-1e300, 0}}));
  list.push_back(softplus_twin(800, {{1, -inf}, {-inf, 0}, {-1e9, 0}}));
  const double bound = *test::make_problem(spec([](test::ProblemSpec& s) {
                          s.gate = kda::Gate::lower_bound;
                        })).options.lower_bound;
  list.push_back(bounded_twin(0, {{inf, bound}, {-inf, 0}, {1e300, bound}, {-1e300, 0}, {0, bound / 2}}));
  list.push_back(bounded_twin(800, {{1e-3, bound}, {-1e-3, 0}, {inf, bound}}));
  for (const bool twice : {false, true}) {
    Twin beta{"beta", test::make_problem(spec([](test::ProblemSpec& s) { s.beta_sigmoid = true; })), {}};
    beta.given.options.allow_neg_eigval = twice;
    beta.plain = without_options(beta.given);
    const double most = twice ? 2 : 1;
    set_both(beta.given.beta, beta.plain.beta, {{inf, most}, {-inf, 0}, {1e300, most}, {0, most / 2}});
    beta.given.validate(), beta.plain.validate();
    list.push_back(std::move(beta));
  }
  Twin norm{"norm", test::make_problem(spec([](test::ProblemSpec& s) { s.qk_l2norm = true; })), {}};
  norm.plain = without_options(norm.given);
  const std::pair<std::vector<double>, std::vector<double>> rows[] = {
      {{inf, 1, -2, 0}, {1, 0, 0, 0}},
      {{3, -inf, 0, 1e300}, {0, -1, 0, 0}},
      {{0x1p900, 0, 0, 0}, {1, 0, 0, 0}},
      {{0x1p1023, -0x1p1023, 0x1p1023, 0x1p1023}, {.5, -.5, .5, .5}},
      {{0x1p600, 1e-300, 0, 0}, {1, 0, 0, 0}}};
  for (std::size_t row = 0; row < norm.given.q.size() / 4; ++row)
    for (std::size_t k = 0; k < 4; ++k) {
      norm.given.q.set(row * 4 + k, rows[row % 5].first[k]);
      norm.plain.q.set(row * 4 + k, rows[row % 5].second[k]);
      norm.given.k.set(row * 4 + k, rows[(row + 2) % 5].first[k]);
      norm.plain.k.set(row * 4 + k, rows[(row + 2) % 5].second[k]);
    }
  norm.given.validate(), norm.plain.validate();
  list.push_back(std::move(norm));
  for (Twin& twin : list) test::add_loss(twin.given), test::add_loss(twin.plain);
  return list;
}

void check_equal(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("element " << i);
    REQUIRE(a[i] == b[i]);
  }
}

void check_equal(const std::vector<numeric::DoubleDouble>& a, const std::vector<numeric::DoubleDouble>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("element " << i);
    REQUIRE(std::isfinite(a[i].hi));
    REQUIRE((a[i].hi == b[i].hi && std::fabs(a[i].lo - b[i].lo) <= 1e-30 * std::fabs(a[i].hi)));
  }
}

}  // namespace

TEST_CASE("gates, sigmoids and norms at their limits are the limits: oracle and stages", "[limits]") {
  for (const Twin& twin : twins()) {
    INFO(twin.name);
    for (const kda::OraclePrecision precision :
         {kda::OraclePrecision::double_double, kda::OraclePrecision::fp64}) {
      const test::WholeOracle given = test::whole_oracle(twin.given, 1, precision),
                              plain = test::whole_oracle(twin.plain, 1, precision);
      check_equal(given.o, plain.o);
      check_equal(given.final_state, plain.final_state);
      check_equal(given.o_magnitude, plain.o_magnitude);
    }
    const kda::StageTruths given = kda::run_stage_oracle(twin.given, 16, 1, kda::Passes::both),
                           plain = kda::run_stage_oracle(twin.plain, 16, 1, kda::Passes::both);
    for (std::size_t stage = 0; stage < kda::stage_count; ++stage)
      check_equal(given[stage].hi, plain[stage].hi);
  }
}

TEST_CASE("gates, sigmoids and norms at their limits are the limits: fp64 and fp32", "[limits]") {
  for (const Twin& twin : twins())
    for (const char* const variant : {"naive", "recurrent", "chunk"})
      for (const DType dtype : {DType::fp64, DType::fp32}) {
        if (!twin.chunk_holds && std::string_view(variant) == "chunk") continue;
        // What is beyond fp32 is lost there.
        if (dtype == DType::fp32 &&
            (twin.given.options.qk_l2norm || (twin.given.A_log && twin.given.A_log->value(0) > 80)))
          continue;
        INFO(twin.name << ' ' << variant << ' ' << numeric::name_of(dtype));
        const kda::Answer given = test::run(twin.given, variant, dtype),
                          plain = test::run(twin.plain, variant, dtype);
        for (std::size_t i = 0; i < given.o.size(); ++i) {
          REQUIRE(std::isfinite(given.o.value(i)));
          REQUIRE(given.o.value(i) == Approx(plain.o.value(i)).epsilon(1e-6).margin(1e-6));
        }
      }
}

TEST_CASE("no gradient comes through what is at its limit, and all others are those of the limit",
          "[limits][gradients]") {
  for (const Twin& twin : twins()) {
    INFO(twin.name);
    const auto run = [](const kda::Problem& problem) {
      return kda::run_gradient_oracle(problem, kda::OraclePrecision::double_double, 16, 1);
    };
    const kda::GradientTruths given = run(twin.given), plain = run(twin.plain);
    const auto gradients = [&](std::string_view variant, DType dtype) {
      return kda::variant_named(variant).run_backward(twin.given,
                                                      test::default_options(twin.given, variant, dtype));
    };
    const kda::GradientTensors fp64[] = {gradients("recurrent", DType::fp64),
                                         gradients("naive", DType::fp64)},
                               fp32[] = {gradients("recurrent", DType::fp32),
                                         gradients("naive", DType::fp32)};
    const bool beyond_fp32 =
        twin.given.options.qk_l2norm || (twin.given.A_log && twin.given.A_log->value(0) > 80);
    for (const kda::GradientRow& row : kda::gradients()) {
      INFO(row.name);
      const std::size_t g = static_cast<std::size_t>(row.gradient);
      const kda::GradientTruth& truth = given[g];
      for (std::size_t i = 0; i < truth.hi.size(); ++i) {
        INFO("element " << i);
        REQUIRE(std::isfinite(truth.hi[i]));
        REQUIRE(std::isfinite(truth.magnitude[i]));
        for (const kda::GradientTensors& got : fp64)
          REQUIRE(got[g].value(i) == Approx(truth.hi[i]).epsilon(1e-9).margin(1e-9));
        for (const kda::GradientTensors& got : fp32)
          if (!beyond_fp32) REQUIRE(got[g].value(i) == Approx(truth.hi[i]).epsilon(1e-3).margin(1e-3));
      }
      const bool through_norm =
          twin.given.options.qk_l2norm && (row.gradient == Gradient::dq || row.gradient == Gradient::dk);
      const bool through_gate = twin.given.options.gate != kda::Gate::none && row.gradient == Gradient::dg;
      const bool through_sigmoid = twin.given.options.beta_sigmoid && row.gradient == Gradient::dbeta;
      if (!through_norm && !through_gate && !through_sigmoid && !plain[g].hi.empty())
        check_equal(test::values_of(truth), test::values_of(plain[g]));
    }
    const kda::GradientTruth &dg = given[static_cast<std::size_t>(Gradient::dg)],
                             &dbeta = given[static_cast<std::size_t>(Gradient::dbeta)];
    for (std::size_t i = 0; twin.given.options.gate != kda::Gate::none && i < dg.hi.size(); ++i)
      if (twin.given.g.value(i) != 0) REQUIRE(dg.hi[i] == 0);
    for (std::size_t i = 0; twin.given.options.beta_sigmoid && i < dbeta.hi.size(); ++i)
      if (twin.given.beta.value(i) != 0) REQUIRE(dbeta.hi[i] == 0);
  }
}

TEST_CASE("NaN where there is no limit: two infinite elements of a row, a NaN, an amplitude against its gate",
          "[limits]") {
  const auto reads = [](const std::vector<double>& row) {
    kda::Problem problem =
        test::make_problem(spec([](test::ProblemSpec& s) { s.T = 1, s.qk_l2norm = true; }));
    for (std::size_t k = 0; k < 4; ++k) problem.q.set(k, row[k]);
    std::vector<double> y(4);
    kda::HeadReader<double>(problem).query({problem.sequences()[0], 0, 0, 1}, kda::NormForm::reciprocal,
                                           kda::Rounding::none, y.data(), 4);
    return y;
  };
  const std::vector<double> two = reads({inf, 1, -inf, 1e300}), nan = reads({1, std::nan(""), inf, 0});
  CHECK(std::isnan(two[0]));
  CHECK(two[1] == 0);
  CHECK(std::isnan(two[2]));
  CHECK(two[3] == 0);
  CHECK(std::isnan(nan[1]));
  for (const auto& [A_log, g] : {std::pair{inf, -inf}, {-inf, inf}, {0.0, std::nan("")}}) {
    kda::Problem problem =
        test::make_problem(spec([](test::ProblemSpec& s) { s.T = 1, s.gate = kda::Gate::softplus; }));
    problem.A_log->set(0, A_log);
    problem.g.set(0, g);
    double read[4];
    kda::HeadReader<double>(problem).log_decay({problem.sequences()[0], 0, 0, 1}, read, 4);
    CHECK(std::isnan(read[0]));
    CHECK(std::isnan(test::whole_oracle(problem).o[0].hi));
  }
}

TEST_CASE("a gate far below the others takes no digits from the stages after it", "[limits][stages]") {
  // The rows after the reset know nothing of how far it went: all stages of theirs are the same.
  const auto truths = [](double reset) {
    kda::Problem problem =
        test::make_problem(spec([](test::ProblemSpec& s) { s.HV = 1, s.initial_state = false; }));
    for (std::size_t k = 0; k < 4; ++k) problem.g.set(2 * 4 + k, reset);
    return kda::run_stage_oracle(problem, 16, 1);
  };
  const kda::StageTruths one = truths(-2000);
  for (const double reset : {-1e9, -1e300, -inf}) {
    INFO(reset);
    const kda::StageTruths other = truths(reset);
    for (const kda::StageRow& row : kda::stages()) {
      if (row.stage == kda::Stage::g_cumsum) continue;
      INFO(row.name);
      const kda::StageTruth &a = one[static_cast<std::size_t>(row.stage)],
                            &b = other[static_cast<std::size_t>(row.stage)];
      for (std::size_t i = 0; i < a.hi.size(); ++i) {
        const double apart = std::fabs((a.hi[i] - b.hi[i]) + (a.lo[i] - b.lo[i]));
        REQUIRE(apart <= 1e-22 * a.magnitude[i]);
      }
    }
    const kda::StageTruth& G = other[static_cast<std::size_t>(kda::Stage::g_cumsum)];
    CHECK(G.hi[1 * 4] > -100);
    CHECK(G.hi[2 * 4] <= reset);
    CHECK(G.hi[9 * 4] <= reset);
  }
}

}  // namespace infinite_inputs_tests
