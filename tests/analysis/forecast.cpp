// What is forecast from the inputs, against the limits of docs/regimes.md from both sides, and against runs.
#include "analysis/forecast.hpp"

#include <cmath>
#include <functional>
#include <limits>

#include "kda/regimes.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

using namespace kda_check;
using analysis::Forecast;
using analysis::Outlook;
using numeric::DType;

namespace {

kda::RunOptions options_of(const kda::Problem& problem, const std::vector<std::string>& arithmetic,
                           DType dtype) {
  kda::RunOptions options = test::default_options(problem, "chunk", dtype);
  for (const std::string& assignment : arithmetic) kda::set_axis(options.arithmetic, assignment);
  return options;
}

Forecast forecast_of(const kda::Problem& problem, const std::vector<std::string>& arithmetic = {}) {
  return analysis::forecast(problem, options_of(problem, arithmetic, problem.dtype()));
}

Outlook decay_outlook(const Forecast& forecast, const std::string& form) {
  for (const analysis::DecayForecast& item : forecast.decays)
    if (item.form == form) return item.outlook;
  FAIL("no form " << form);
  return Outlook::safe;
}

/// Every gate g, in one head.
kda::Problem constant_gates(float g, std::size_t T = 64, int chunk_size = 64) {
  kda::Problem problem = test::make_problem({.T = T, .K = 4, .V = 2, .chunk_size = chunk_size});
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, static_cast<double>(g));
  return problem;
}

bool has_nonfinite(const tensor::Tensor& tensor) {
  for (std::size_t i = 0; i < tensor.size(); ++i)
    if (!std::isfinite(tensor.value(i))) return true;
  return false;
}

double largest(const tensor::Tensor& tensor) {
  double value = 0;
  for (std::size_t i = 0; i < tensor.size(); ++i) value = std::max(value, std::fabs(tensor.value(i)));
  return value;
}

bool run_is_nonfinite(const kda::Problem& problem, const kda::RunOptions& options) {
  const kda::Answer answer = test::run(problem, "chunk", options);
  return has_nonfinite(answer.o) || has_nonfinite(answer.final_state);
}

/// Formulations whose kernels run: to hold the forecast to another one, add its name.
const std::vector<std::string> runnable_decays = {"pair-late",       "factored:16",     "factored:32",
                                                  "factored:64",     "clamp:126",       "pair",
                                                  "anchor-pair:16",  "anchor-pair:32",  "anchor-pair:64",
                                                  "anchor-first:16", "anchor-first:32", "anchor-first:64",
                                                  "anchor-mid:16",   "anchor-mid:32",   "anchor-mid:64"};
const std::vector<std::string> runnable_inverses = {"substitution", "blocks:16",   "blocks:32",
                                                    "doubling:16",  "doubling:32", "doubling:64",
                                                    "horner:16",    "horner:32",   "horner:64"};

struct Regime {
  std::string name;
  kda::Problem problem;
};

template <class Change>
kda::Problem changed(kda::Problem problem, Change change) {
  change(problem);
  return problem;
}

std::vector<Regime> constant_gate_regimes() {
  std::vector<Regime> regimes;
  for (const float g : {1.f, 1.38f, 1.40f, 1.41f, 2.5f, 2.75f, 2.8f, 2.87f, 5.f, 5.5f, 5.6f, 5.9f, 5.95f,
                        11.f, 11.2f, 20.f, 400.f})
    regimes.push_back({"constant -" + std::to_string(g), constant_gates(-g)});
  for (const std::size_t T : {1, 2, 8, 9, 15, 16, 17, 40, 65, 100})
    for (const float g : {5.95f, 11.2f, 100.f})
      regimes.push_back({"constant -" + std::to_string(g) + ", ragged", constant_gates(-g, T)});
  for (const int chunk_size : {8, 16, 20, 32, 48})
    for (const float g : {2.8f, 5.95f, 11.2f})
      regimes.push_back(
          {"constant -" + std::to_string(g) + ", short chunks", constant_gates(-g, 70, chunk_size)});
  regimes.push_back({"growing gates", constant_gates(0.5f)});
  regimes.push_back({"gates that grow beyond exp", constant_gates(2.0f)});
  return regimes;
}

std::vector<Regime> drawn_regimes() {
  std::vector<Regime> regimes;
  for (const double p : {0.02, 0.1, 0.3, 0.6})
    for (const double spike : {-5.0, -60.0, -1000.0}) {
      test::Random random(static_cast<std::uint64_t>(1000 * p - spike));
      regimes.push_back(
          {"spikes", changed(test::make_problem({.T = 150, .HV = 1, .K = 16}), [&](kda::Problem& x) {
             for (std::size_t i = 0; i < x.g.size(); ++i) x.g.set(i, random.uniform() < p ? spike : -1e-3);
           })});
    }
  for (const double A_log : {-1.0, 1.4, 2.8, 4.0})
    regimes.push_back(
        {"softplus",
         changed(test::make_problem({.T = 130, .H = 1, .HV = 2, .K = 16, .gate = kda::Gate::softplus}),
                 [&](kda::Problem& x) {
                   for (std::size_t i = 0; i < x.A_log->size(); ++i) x.A_log->set(i, A_log);
                 })});
  for (const double lower : {-5.0, -12.0})
    regimes.push_back(
        {"lower bound, packed", changed(test::make_problem({.T = 200,
                                                            .H = 2,
                                                            .HV = 2,
                                                            .K = 8,
                                                            .gate = kda::Gate::lower_bound,
                                                            .qk_l2norm = true,
                                                            .cu_seqlens = {0, 1, 65, 65, 195, 200}}),
                                        [&](kda::Problem& x) { x.options.lower_bound = lower; })});
  for (const DType dtype : {DType::fp64, DType::bf16, DType::fp16})
    for (const double gate_size : {1.0, 9.0, 25.0})
      regimes.push_back({"dtype", test::make_problem({.T = 70, .dtype = dtype, .gate_size = gate_size})});
  // fp64 overflows at 709.78.
  for (const double g : {40.0, 48.0, 90.0, 1000.0})
    regimes.push_back(
        {"fp64 constant", changed(test::make_problem({.T = 64, .dtype = DType::fp64}), [&](kda::Problem& x) {
           for (std::size_t i = 0; i < x.g.size(); ++i) x.g.set(i, -g);
         })});
  return regimes;
}

std::vector<Regime> spoiled_regimes() {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const test::ProblemSpec plain{.T = 40, .H = 1, .HV = 2};
  std::vector<Regime> regimes;
  const auto add = [&](const std::string& name, kda::Problem problem,
                       const std::function<void(kda::Problem&)>& change) {
    change(problem);
    regimes.push_back({name, std::move(problem)});
  };
  for (const double value : {inf, -inf, nan}) {
    add("q", test::make_problem(plain), [&](kda::Problem& x) { x.q.set(77, value); });
    add("k", test::make_problem(plain), [&](kda::Problem& x) { x.k.set(77, value); });
    add("v", test::make_problem(plain), [&](kda::Problem& x) { x.v.set(77, value); });
    add("g", test::make_problem(plain), [&](kda::Problem& x) { x.g.set(77, value); });
    add("last g", test::make_problem(plain), [&](kda::Problem& x) { x.g.set(x.g.size() - 1, value); });
    add("beta", test::make_problem(plain), [&](kda::Problem& x) { x.beta.set(7, value); });
    add("state", test::make_problem(plain), [&](kda::Problem& x) { x.initial_state->set(7, value); });
    test::ProblemSpec squashed = plain;
    squashed.beta_sigmoid = true;
    squashed.gate = kda::Gate::lower_bound;
    add("beta behind a sigmoid", test::make_problem(squashed),
        [&](kda::Problem& x) { x.beta.set(7, value); });
    add("g behind a sigmoid", test::make_problem(squashed), [&](kda::Problem& x) { x.g.set(77, value); });
    squashed.gate = kda::Gate::softplus;
    add("g behind softplus", test::make_problem(squashed), [&](kda::Problem& x) { x.g.set(77, value); });
  }
  for (const double A_log : {100.0, -20.0})
    for (const double x : {-200.0, 50.0})
      add("alog extreme", test::make_problem({.T = 40, .gate = kda::Gate::softplus}),
          [&](kda::Problem& problem) {
            problem.A_log->set(0, A_log);
            for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, x);
          });
  add("state beyond fp16", test::make_problem({.T = 20, .dtype = DType::fp16}),
      [](kda::Problem& x) { x.initial_state->set(3, 65536); });
  add("state beyond fp16, fp32", test::make_problem({.T = 20}),
      [](kda::Problem& x) { x.initial_state->set(3, 65536); });
  return regimes;
}

/// Unit keys with cosine `rho` between them (docs/regimes.md, corr_keys and identical_keys).
std::vector<Regime> correlated_key_regimes(const std::vector<std::size_t>& lengths) {
  std::vector<Regime> regimes;
  constexpr std::size_t K = 32;
  for (const double rho : {0.5, 0.9, 0.99, 1.0})
    for (const double beta : {0.5, 0.9997, 1.5})
      for (const std::size_t T : lengths) {
        kda::Problem problem =
            test::make_problem({.T = T, .K = K, .V = 4, .qk_l2norm = true, .gate_size = 1e-4});
        for (std::size_t t = 0; t < T; ++t) {
          problem.beta.set(t, beta);
          for (std::size_t c = 0; c < K; ++c)
            problem.k.set(t * K + c,
                          std::sqrt(rho) * (c % 2 == 0 ? 1 : -1) / std::sqrt(static_cast<double>(K)) +
                              std::sqrt(1 - rho) * problem.k.value(t * K + c));
        }
        regimes.push_back(
            {"rho " + std::to_string(rho) + " beta " + std::to_string(beta) + " T " + std::to_string(T),
             std::move(problem)});
      }
  return regimes;
}

/// Pairs of regime and formulation that are forecast one way and run another.
void check_against_runs(const std::vector<Regime>& regimes) {
  std::vector<std::pair<std::string, std::string>> formulations;
  for (const std::string& decay : runnable_decays)
    formulations.emplace_back(decay, runnable_inverses.front());
  for (const std::string& inverse : runnable_inverses) formulations.emplace_back("pair", inverse);
  std::size_t nonfinite = 0, finite = 0;
  for (const Regime& regime : regimes) {
    const DType dtype = regime.problem.dtype();
    for (const auto& [decay, inverse] : formulations) {
      const kda::RunOptions options =
          options_of(regime.problem, {"decay=" + decay, "inverse=" + inverse}, dtype);
      const Forecast forecast = analysis::forecast(regime.problem, options);
      const bool runs_nonfinite = run_is_nonfinite(regime.problem, options);
      INFO(regime.name << " T=" << regime.problem.dimensions().T << " " << numeric::name_of(dtype)
                       << " decay=" << decay << " inverse=" << inverse);
      CHECK((forecast.outlook() == Outlook::breaks) == runs_nonfinite);
      ++(runs_nonfinite ? nonfinite : finite);
    }
  }
  // A forecast that always says the same would not get here.
  CHECK(nonfinite > 20);
  CHECK(finite > 20);
}

}  // namespace

TEST_CASE("the overflow limits of constant gates are met from both sides", "[forecast]") {
  const struct {
    const char* form;
    double limit;
    Outlook beyond;
  } rows[] = {{"factored:16", 5.5452, Outlook::breaks},      {"factored:32", 2.7726, Outlook::breaks},
              {"factored:64", 1.38629, Outlook::breaks},     {"anchor-first:16", 5.91486, Outlook::breaks},
              {"anchor-first:32", 2.86203, Outlook::breaks}, {"anchor-first:64", 1.40830, Outlook::breaks},
              {"anchor-mid:16", 11.09035, Outlook::breaks},  {"anchor-mid:32", 5.5452, Outlook::breaks},
              {"anchor-mid:64", 2.7726, Outlook::breaks},    {"pair-late", 1.40830, Outlook::masked},
              {"clamp:126", 5.82243, Outlook::wrong}};
  for (const auto& row : rows) {
    INFO(row.form);
    const auto at = [&](double g) {
      return decay_outlook(forecast_of(constant_gates(static_cast<float>(-g))), row.form);
    };
    CHECK(at(row.limit * (1 - 1e-4)) < row.beyond);
    CHECK(at(row.limit * (1 + 1e-4)) == row.beyond);
    CHECK(at(20) >= row.beyond);
  }
  for (const char* const form : {"pair", "anchor-pair:16", "anchor-pair:64"})
    CHECK(decay_outlook(forecast_of(constant_gates(-1000)), form) == Outlook::safe);
}

TEST_CASE("fp16 operands overflow at 11.09 nats", "[forecast]") {
  const auto at = [](float g, double key, const char* storage) {
    kda::Problem problem = constant_gates(g);
    for (std::size_t i = 0; i < problem.k.size(); ++i) problem.k.set(i, key);
    return decay_outlook(forecast_of(problem, {storage}), "factored:16");
  };
  for (const char* const storage : {"storage=fp16@score_operands", "storage=fp16@exponentials"}) {
    CHECK(at(-0.692f, 1, storage) < Outlook::wrong);
    CHECK(at(-0.694f, 1, storage) == Outlook::breaks);
  }
  // It is the product with the key that is rounded, or the exponential alone.
  CHECK(at(-0.694f, 0.5, "storage=fp16@score_operands") < Outlook::wrong);
  CHECK(at(-0.694f, 0.5, "storage=fp16@exponentials") == Outlook::breaks);
  CHECK(at(-0.692f, 2, "storage=fp16@score_operands") == Outlook::breaks);
}

TEST_CASE("a forecast turns at the same gate as the run, to the last bit", "[forecast]") {
  for (const std::string form : {"anchor-first:16", "anchor-first:64", "anchor-mid:16", "anchor-mid:32",
                                 "factored:16", "factored:64"}) {
    INFO(form);
    const auto runs_nonfinite = [&](float g) {
      const kda::Problem problem = constant_gates(-g);
      return run_is_nonfinite(problem, options_of(problem, {"decay=" + form}, DType::fp32));
    };
    float finite = 1, nonfinite = 20;
    while (std::nextafter(finite, nonfinite) < nonfinite) {
      const float middle = finite + (nonfinite - finite) / 2;
      (runs_nonfinite(middle) ? nonfinite : finite) = middle;
    }
    CHECK(decay_outlook(forecast_of(constant_gates(-finite)), form) < Outlook::wrong);
    CHECK(decay_outlook(forecast_of(constant_gates(-nonfinite)), form) == Outlook::breaks);
  }
}

TEST_CASE("the runs that are not finite are those forecast: constant gates", "[forecast]") {
  check_against_runs(constant_gate_regimes());
}
TEST_CASE("the runs that are not finite are those forecast: drawn gates", "[forecast]") {
  check_against_runs(drawn_regimes());
}
TEST_CASE("the runs that are not finite are those forecast: spoiled inputs", "[forecast]") {
  check_against_runs(spoiled_regimes());
}

TEST_CASE("the runs that are not finite are those forecast: correlated keys", "[forecast]") {
  std::size_t finite = 0;
  for (const Regime& regime : correlated_key_regimes({16, 64, 128, 256, 320}))
    for (const std::string& inverse : runnable_inverses)
      for (const char* const storage :
           {"storage=none", "storage=tf32@products", "storage=fp16@inverse_operands"}) {
        const kda::RunOptions options =
            options_of(regime.problem, {"decay=pair", "inverse=" + inverse, storage}, DType::fp32);
        const kda::Answer answer = test::run(regime.problem, "chunk", options);
        const bool runs_nonfinite = has_nonfinite(answer.o) || has_nonfinite(answer.final_state);
        const bool breaks = analysis::forecast(regime.problem, options).outlook() == Outlook::breaks;
        INFO(regime.name << " inverse=" << inverse << " " << storage);
        // A state about to overflow may be forecast to have done so.
        CHECK((breaks == runs_nonfinite || (breaks && largest(answer.final_state) > 1e35)));
        finite += !runs_nonfinite;
      }
  CHECK(finite > 20);
}

TEST_CASE("the runs that are not finite are those forecast: correlated keys in fp16 and bf16", "[forecast]") {
  std::size_t finite = 0, nonfinite = 0;
  for (const Regime& regime : correlated_key_regimes({64, 256}))
    for (const DType dtype : {DType::fp16, DType::bf16})
      for (const char* const inverse : {"inverse=doubling:16", "inverse=doubling:32", "inverse=doubling:64"})
        for (const char* const storage : {"storage=upstream", "storage=flash-kda"}) {
          const kda::Problem problem = kda::with_inputs_rounded_to(regime.problem, dtype);
          const kda::RunOptions options = options_of(problem, {"decay=pair", inverse, storage}, dtype);
          const kda::Answer answer = test::run(problem, "chunk", options);
          const bool runs_nonfinite = has_nonfinite(answer.o) || has_nonfinite(answer.final_state);
          const bool breaks = analysis::forecast(problem, options).outlook() == Outlook::breaks;
          INFO(regime.name << " " << numeric::name_of(dtype) << " " << inverse << " " << storage);
          CHECK(breaks == runs_nonfinite);
          ++(runs_nonfinite ? nonfinite : finite);
        }
  CHECK(finite > 20);
  CHECK(nonfinite > 20);
}

TEST_CASE("doubling that costs more than five percent is wrong", "[forecast]") {
  const kda::Problem problem = kda::parse_regime("unbounded_softplus:K=16,V=16,A=16").build();
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    const auto outlook = [&](const char* inverse) {
      return analysis::forecast(problem, options_of(problem, {inverse}, dtype)).outlook();
    };
    CHECK(outlook("inverse=doubling:64") == Outlook::wrong);
    CHECK(outlook("inverse=doubling:16") == Outlook::safe);
  }
}

TEST_CASE("token forms fail where their runs do", "[forecast]") {
  for (const Regime& regime : spoiled_regimes()) {
    INFO(regime.name << " " << numeric::name_of(regime.problem.dtype()));
    const kda::Answer answer = test::run(regime.problem, "recurrent", regime.problem.dtype());
    CHECK(forecast_of(regime.problem).token_forms.has_value() ==
          (has_nonfinite(answer.o) || has_nonfinite(answer.final_state)));
  }
}

TEST_CASE("the flush window of an anchor in the middle of 64 rows is .04 wide", "[forecast]") {
  const auto at = [](float g) { return forecast_of(constant_gates(g)); };
  CHECK(decay_outlook(at(-2.70f), "anchor-mid:64") == Outlook::safe);
  CHECK(decay_outlook(at(-2.75f), "anchor-mid:64") == Outlook::flushes);
  CHECK(decay_outlook(at(-2.78f), "anchor-mid:64") == Outlook::breaks);
  const kda::Problem problem = constant_gates(-2.75f);
  // Silent only where exp flushes.
  CHECK(forecast_of(problem, {"decay=anchor-mid:64"}).outlook() == Outlook::safe);
  CHECK(forecast_of(problem, {"decay=anchor-mid:64", "exponential=flush"}).outlook() == Outlook::wrong);
  CHECK(forecast_of(problem, {"decay=anchor-mid:64"}).selected_decay.range.lost_weight == 1);
}

TEST_CASE("beyond the clamp, forgotten keys are read at full weight", "[forecast]") {
  // Nine powers of two for each token: rows 14 and 15 are both clamped, their pair has weight 1, not 2^-9.
  const Forecast forecast =
      forecast_of(constant_gates(static_cast<float>(-9 * std::log(2.0))), {"decay=clamp:126"});
  CHECK(forecast.outlook() == Outlook::wrong);
  CHECK(forecast.selected_decay.range.weight_error == Approx(1 - 0x1p-9).epsilon(1e-4));
  CHECK(forecast.selected_decay.range.clamped_excess == Approx(9).epsilon(1e-4));
}

TEST_CASE("a forecast names the place that overflows first", "[forecast]") {
  kda::Problem problem = test::make_problem({.T = 150, .H = 2, .HV = 2, .K = 8});
  // Token 96 of head 1: row 32 of chunk 1, the first of a block of 16; channel 5 falls 100 nats in row 35.
  problem.g.set((99 * 2 + 1) * 8 + 5, -100);
  const Forecast forecast = forecast_of(problem, {"decay=anchor-first:16"});
  REQUIRE(forecast.selected_decay.range.overflow);
  const analysis::Place place = *forecast.selected_decay.range.overflow;
  CHECK(place.head == 1);
  CHECK(place.chunk == 1);
  CHECK(place.row == 35);
  CHECK(place.channel == 5);
}

TEST_CASE("identical keys spoil doubling, in fp16 at 16 rows, in fp32 at 64", "[forecast]") {
  kda::Problem problem = test::exact_problem(64, 16, 4, DType::fp32);
  for (std::size_t t = 0; t < 64; ++t) {
    problem.beta.set(t, 1);
    for (std::size_t c = 0; c < 16; ++c) problem.k.set(t * 16 + c, c == 0 ? 1 : 0);
  }
  const auto outlook = [&](const char* inverse, const char* storage) {
    return forecast_of(problem, {inverse, storage}).selected_inverse.outlook;
  };
  CHECK(forecast_of(problem).growth.blocks[0].largest_power == 3432);
  CHECK(outlook("inverse=doubling:16", "storage=none") == Outlook::safe);
  CHECK(outlook("inverse=doubling:16", "storage=fp16@inverse_operands") == Outlook::wrong);
  CHECK(outlook("inverse=doubling:32", "storage=fp16@inverse_operands") == Outlook::breaks);
  CHECK(outlook("inverse=doubling:64", "storage=none") == Outlook::wrong);
  CHECK(outlook("inverse=horner:64", "storage=none") == Outlook::safe);
  CHECK(outlook("inverse=horner:64", "storage=fp16@inverse_operands") == Outlook::breaks);
  CHECK(outlook("inverse=substitution", "storage=none") == Outlook::safe);
}

TEST_CASE("the errors of doubling, fed back through the state, overflow it after some chunks", "[forecast]") {
  const auto outlook = [](std::size_t T, const char* inverse, const char* storage) {
    kda::Problem problem =
        test::make_problem({.T = T, .K = 16, .V = 4, .qk_l2norm = true, .gate_size = 1e-5});
    for (std::size_t i = 0; i < problem.k.size(); ++i) problem.k.set(i, problem.k.value(i % 16));
    for (std::size_t t = 0; t < T; ++t) problem.beta.set(t, 0.9997);
    return forecast_of(problem, {inverse, storage}).selected_inverse.outlook;
  };
  CHECK(outlook(64, "inverse=doubling:64", "storage=none") == Outlook::wrong);
  CHECK(outlook(1024, "inverse=doubling:64", "storage=none") == Outlook::breaks);
  CHECK(outlook(64, "inverse=doubling:64", "storage=tf32@inverse_operands") == Outlook::wrong);
  CHECK(outlook(1024, "inverse=doubling:64", "storage=tf32@inverse_operands") == Outlook::breaks);
  CHECK(outlook(1024, "inverse=doubling:16", "storage=none") == Outlook::safe);
  CHECK(outlook(1024, "inverse=substitution", "storage=none") == Outlook::safe);
}

TEST_CASE("contraction is that of constant gates", "[forecast]") {
  const Forecast forecast = forecast_of(constant_gates(-0.25f, 200));
  const analysis::Contraction& head = forecast.heads.at(0);
  CHECK(head.mean_log_decay == Approx(-0.25));
  CHECK(head.least_log_decay == Approx(-0.25));
  CHECK(head.persistence == Approx(4));
  CHECK(head.largest_chunk_sum == Approx(16));
}

TEST_CASE("a forecast does not depend on the number of threads", "[forecast]") {
  const kda::Problem problem =
      test::make_problem({.T = 200, .H = 3, .HV = 3, .gate_size = 8, .cu_seqlens = {0, 90, 200}});
  kda::RunOptions options = options_of(problem, {"decay=anchor-first:16"}, DType::fp32);
  const Forecast one = analysis::forecast(problem, options);
  options.threads = 4;
  const Forecast four = analysis::forecast(problem, options);
  REQUIRE(one.selected_decay.range.overflow.has_value() == four.selected_decay.range.overflow.has_value());
  CHECK(one.selected_decay.range.largest == four.selected_decay.range.largest);
  CHECK(one.selected_decay.range.place.row == four.selected_decay.range.place.row);
  CHECK(one.growth.norm == four.growth.norm);
  CHECK(one.heads[2].persistence == four.heads[2].persistence);
}
