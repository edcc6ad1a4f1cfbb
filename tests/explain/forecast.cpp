// What is forecast from the inputs, against the limits of docs/scenarios.md from both sides, and against
// runs.
#include "explain/growth/forecast.hpp"

#include <cmath>
#include <functional>
#include <limits>

#include "explain/forecast_regimes.hpp"
#include "kda/pool/pool.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

namespace forecast_tests {

using namespace kda_check;
using explain::Forecast;
using explain::Outlook;
using numeric::DType;
using namespace test;

namespace {

kda::RunOptions options_of(const kda::Problem& problem, const std::vector<std::string>& arithmetic,
                           DType dtype) {
  kda::RunOptions options = test::default_options(problem, "chunk", dtype);
  for (const std::string& assignment : arithmetic) kda::set_axis(options.arithmetic, assignment);
  return options;
}

Forecast forecast_of(const kda::Problem& problem, const std::vector<std::string>& arithmetic = {}) {
  return explain::forecast(problem, options_of(problem, arithmetic, problem.dtype()));
}

template <class Forms>
Outlook outlook_of(const Forms& forms, const std::string& name) {
  for (const auto& item : forms)
    if (item.form == name) return item.outlook;
  FAIL("no form " << name);
  return Outlook::safe;
}
Outlook decay_outlook(const Forecast& forecast, const std::string& form) {
  return outlook_of(forecast.decays, form);
}

bool has_nonfinite(const tensor::Tensor& tensor) {
  for (std::size_t i = 0; i < tensor.size(); ++i)
    if (!std::isfinite(tensor.value(i))) return true;
  return false;
}

bool run_is_nonfinite(const kda::Problem& problem, const kda::RunOptions& options) {
  const kda::Answer answer = test::run(problem, "chunk", options);
  return has_nonfinite(answer.o) || has_nonfinite(answer.final_state);
}

/// Every form that the forecast lists breaks where its run, beside the stable choice of the other, does.
void check_against_runs(const std::vector<Regime>& regimes, const std::vector<std::string>& arithmetic = {}) {
  std::size_t nonfinite = 0, finite = 0;
  for (const Regime& regime : regimes) {
    const DType dtype = regime.problem.dtype();
    const Forecast forecast =
        explain::forecast(regime.problem, options_of(regime.problem, arithmetic, dtype));
    const auto check = [&](const auto& item, const std::string& word) {
      kda::RunOptions options = options_of(regime.problem, arithmetic, dtype);
      kda::set_axis(options.arithmetic, "decay=anchor-pair:16");
      kda::set_axis(options.arithmetic, "inverse=substitution");
      kda::set_axis(options.arithmetic, word + item.form);
      const bool runs_nonfinite = run_is_nonfinite(regime.problem, options);
      INFO(regime.name << " T=" << regime.problem.dimensions().T << " " << numeric::name_of(dtype) << " "
                       << word << item.form);
      CHECK((item.outlook == Outlook::breaks) == runs_nonfinite);
      ++(runs_nonfinite ? nonfinite : finite);
    };
    for (const explain::DecayForecast& item : forecast.decays) check(item, "decay=");
    for (const explain::InverseForecast& item : forecast.inverses) check(item, "inverse=");
  }
  // A forecast that always says the same would not get here.
  CHECK(nonfinite > 10);
  CHECK(finite > 10);
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

TEST_CASE(
    "what overflows in a factored tail, and in a readout from the middle, whose factors reach over whole "
    "chunks, is told of every form",
    "[forecast]") {
  std::size_t nonfinite = 0, finite = 0;
  for (const float g : {-0.5F, -1.3F, -1.4F, -2.7F, -2.8F, -5.5F, -5.6F, -20.F})
    for (const std::size_t chunk_size : {16U, 32U, 64U})
      for (const char* const word :
           {"tail=factored", "tail=factored-late", "tail=difference", "readout=centre", "readout=first"}) {
        const kda::Problem problem = constant_gates(g);
        kda::RunOptions options = options_of(problem, {word, "decay=pair"}, problem.dtype());
        options.chunk_size = chunk_size;
        const bool runs_nonfinite = run_is_nonfinite(problem, options);
        const Forecast forecast = explain::forecast(problem, options);
        INFO(word << " chunks of " << chunk_size << " g " << g);
        CHECK((decay_outlook(forecast, "pair") == Outlook::breaks) == runs_nonfinite);
        CHECK(forecast.selected_decay.range.overflow.has_value() == runs_nonfinite);
        ++(runs_nonfinite ? nonfinite : finite);
      }
  CHECK(nonfinite > 20);
  CHECK(finite > 20);
}

TEST_CASE("the forms that break are those whose runs are not finite", "[forecast]") {
  check_against_runs(constant_gate_regimes());
  check_against_runs(drawn_regimes());
  check_against_runs(spoiled_regimes());
  for (const char* const exponential : {"flush", "xla", "poly", "cuda-fast"})
    check_against_runs(constant_gate_regimes(), {std::string("exponential=") + exponential});
}

TEST_CASE("the forms that break are those whose runs are not finite, with correlated keys", "[forecast]") {
  for (const char* const storage : {"storage=tf32@products", "storage=fp16@inverse_operands"})
    check_against_runs(correlated_key_regimes({16, 128, 320}), {storage});
  std::vector<Regime> narrow;
  for (const Regime& regime : correlated_key_regimes({64, 256}))
    for (const DType dtype : {DType::fp16, DType::bf16})
      narrow.push_back({regime.name, kda::with_inputs_rounded_to(regime.problem, dtype)});
  check_against_runs(narrow, {"storage=flash-kda"});
}

TEST_CASE("doubling that costs more than five percent is wrong", "[forecast]") {
  const kda::Problem problem = kda::parse_regime("unbounded_softplus:K=16,V=16,A=16").build();
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    const auto outlook = [&](const char* inverse) {
      return explain::forecast(problem, options_of(problem, {inverse}, dtype)).outlook();
    };
    CHECK(outlook("inverse=doubling:64") == Outlook::wrong);
    CHECK(outlook("inverse=doubling:16") == Outlook::safe);
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
  CHECK(forecast_of(problem, {"decay=anchor-mid:64"}).selected_decay.range.lost.has_value());
}

TEST_CASE("beyond the clamp, forgotten keys are read at full weight", "[forecast]") {
  // Nine powers of two for each token: rows 14 and 15 are both clamped, their pair has weight 1, not 2^-9.
  const Forecast forecast =
      forecast_of(constant_gates(static_cast<float>(-9 * std::log(2.0))), {"decay=clamp:126"});
  CHECK(forecast.outlook() == Outlook::wrong);
  CHECK(forecast.selected_decay.range.weight_error.value == Approx(1 - 0x1p-9).epsilon(1e-4));
  CHECK(forecast.selected_decay.range.clamped_excess == Approx(9).epsilon(1e-4));
}

TEST_CASE("a forecast names the place that overflows first", "[forecast]") {
  kda::Problem problem = test::make_problem({.T = 150, .H = 2, .HV = 2, .K = 8});
  // Token 96 of head 1: row 32 of chunk 1, the first of a block of 16; channel 5 falls 100 nats in row 35.
  problem.g.set((99 * 2 + 1) * 8 + 5, -100);
  const Forecast forecast = forecast_of(problem, {"decay=anchor-first:16"});
  REQUIRE(forecast.selected_decay.range.overflow);
  const explain::Place place = *forecast.selected_decay.range.overflow;
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
  CHECK(forecast_of(problem).growth.blocks[1].power.value == 3432);
  CHECK(outlook("inverse=doubling:16", "storage=none") == Outlook::safe);
  CHECK(outlook("inverse=doubling:16", "storage=fp16@inverse_operands") == Outlook::wrong);
  CHECK(outlook("inverse=doubling:32", "storage=fp16@inverse_operands") == Outlook::breaks);
  CHECK(outlook("inverse=doubling:64", "storage=none") == Outlook::wrong);
  CHECK(outlook("inverse=horner:64", "storage=none") == Outlook::safe);
  CHECK(outlook("inverse=horner:64", "storage=fp16@inverse_operands") == Outlook::breaks);
  CHECK(outlook("inverse=substitution", "storage=none") == Outlook::safe);
  CHECK(outlook("inverse=paterson:16", "storage=none") == Outlook::safe);
  CHECK(outlook("inverse=paterson:16", "storage=fp16@inverse_operands") == Outlook::wrong);
  CHECK(outlook("inverse=paterson:64", "storage=none") == Outlook::wrong);
  CHECK(outlook("inverse=nested", "storage=fp16@inverse_operands") == Outlook::safe);
}

TEST_CASE("contraction is that of constant gates", "[forecast]") {
  const Forecast forecast = forecast_of(constant_gates(-0.25f, 200));
  const explain::DecayRate& head = forecast.heads.at(0);
  CHECK(head.mean_log_decay == Approx(-0.25));
  CHECK(head.least_log_decay == Approx(-0.25));
  CHECK(head.persistence == Approx(1 / (1 - std::exp(-0.25))));
  CHECK(head.largest_chunk_sum == Approx(16));
}

TEST_CASE("a forecast does not depend on the number of threads", "[forecast]") {
  const kda::Problem problem =
      test::make_problem({.T = 200, .H = 3, .HV = 3, .gate_size = 8, .cu_seqlens = {0, 90, 200}});
  kda::RunOptions options = options_of(problem, {"decay=anchor-first:16"}, DType::fp32);
  const Forecast one = explain::forecast(problem, options);
  options.threads = 4;
  const Forecast four = explain::forecast(problem, options);
  REQUIRE(one.selected_decay.range.overflow.has_value() == four.selected_decay.range.overflow.has_value());
  CHECK(one.selected_decay.range.largest.value == four.selected_decay.range.largest.value);
  CHECK(one.selected_decay.range.largest.place.row == four.selected_decay.range.largest.place.row);
  CHECK(one.growth.norm == four.growth.norm);
  CHECK(one.heads[2].persistence == four.heads[2].persistence);
}

}  // namespace forecast_tests
