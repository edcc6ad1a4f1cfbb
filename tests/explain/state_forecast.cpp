// What is forecast of stored states is what storing them costs, with slow gates and with fast ones.
#include "explain/growth/state_forecast.hpp"

#include <fmt/format.h>

#include <cmath>

#include "kda/arithmetic/stored_words.hpp"
#include "kda/regimes/regimes.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

namespace state_forecast_tests {

using namespace kda_check;
using explain::StateForecast;
using numeric::DType;

namespace {

struct Measured {
  double o, final_state;
};

Measured measured(const kda::Problem& problem, const test::WholeOracle& oracle,
                  const kda::StoredState& stored) {
  kda::RunOptions options = test::default_options(problem, "recurrent", DType::fp32);
  options.threads = 2;
  options.arithmetic.stored = stored;
  const kda::Answer answer = test::run(problem, "recurrent", options);
  return {test::rms_ratio(answer.o, oracle.o), test::rms_ratio(answer.final_state, oracle.final_state)};
}

}  // namespace

TEST_CASE(
    "the error of a stored state is forecast within a factor of 1.5, with slow gates and with fast ones",
    "[explain][state_forecast]") {
  for (const char* const regime :
       {"control:T=1024,H=1,K=64,V=64", "lb_const_sweep:T=512,H=1,g=-0.5,K=64,V=64", "gdn2:T=512,H=1,HV=1",
        "slow_alpha:T=4096,H=1,K=64,V=64", "gate_zero:T=2048,H=1", "lb_real:T=512,H=1,K=64,V=64"}) {
    const kda::Problem problem = kda::parse_regime(regime).build();
    const test::WholeOracle oracle = test::whole_oracle(problem, 2);
    std::size_t held = 0;
    for (const StateForecast& row : explain::forecast_states(problem, 2)) {
      if (row.stagnates() || row.overflows()) continue;
      ++held;
      const Measured got = measured(problem, oracle, row.stored);
      INFO(regime << ' ' << kda::words_of(row.stored) << ": change " << row.change);
      CHECK(got.o < 1.5 * row.o);
      CHECK(got.o > row.o / 1.5);
      CHECK(got.final_state < 1.5 * row.final_state);
      CHECK(got.final_state > row.final_state / 1.5);
    }
    CHECK(held > 12);
  }
}

TEST_CASE("what nearest rounding swallows, and what is clipped, is told beforehand",
          "[explain][state_forecast]") {
  // Hardly anything is written or forgotten at a token: three bits lose it, unless they are rounded by lot.
  const kda::Problem slow = kda::parse_regime("weak_contraction_long:T=8192").build();
  const test::WholeOracle oracle = test::whole_oracle(slow, 2);
  for (const StateForecast& row : explain::forecast_states(slow, 2)) {
    const std::string words = kda::words_of(row.stored);
    INFO(words);
    if (words == "e4m3+row") {
      CHECK(row.stagnates());
      CHECK(measured(slow, oracle, row.stored).final_state > row.final_state);
    }
    if (words.find("stochastic") != words.npos) CHECK(!row.stagnates());
  }
  const kda::Problem large = kda::parse_regime("control:T=256,H=1,K=64,V=64,size=1e5").build();
  for (const StateForecast& row : explain::forecast_states(large, 1)) {
    INFO(kda::words_of(row.stored));
    const bool has_range =
        row.stored.scale != kda::StateScale::none || row.stored.format == kda::StateFormat::bf16;
    CHECK(row.overflows() == !has_range);
  }
}

TEST_CASE("states below the steps of their format are forecast, too", "[explain][state_forecast]") {
  for (const char* const regime :
       {"control:T=256,H=1,K=64,V=64,size=1e-3", "control:T=256,H=1,K=64,V=64,size=1e-2"}) {
    const kda::Problem problem = kda::parse_regime(regime).build();
    const test::WholeOracle oracle = test::whole_oracle(problem, 2);
    for (const StateForecast& row : explain::forecast_states(problem, 2)) {
      const Measured got = measured(problem, oracle, row.stored);
      INFO(regime << ' ' << kda::words_of(row.stored) << ": measured " << got.o << ' ' << got.final_state
                  << ", forecast " << row.o << ' ' << row.final_state);
      // What nearest rounding swallows is told as a least error.
      CHECK(got.o > (row.stagnates() ? row.o / 1.05 : row.o / 1.5));
      CHECK(got.final_state > (row.stagnates() ? row.final_state / 1.05 : row.final_state / 1.5));
      if (row.stagnates()) continue;
      CHECK(got.o < 1.5 * row.o);
      CHECK(got.final_state < 1.5 * row.final_state);
    }
  }
}

TEST_CASE("states whose squares no double holds are forecast as any", "[explain][state_forecast]") {
  const auto forecast = [](double factor) {
    kda::Problem problem = test::make_problem({.T = 60, .K = 16, .V = 8, .dtype = DType::fp64});
    for (tensor::Tensor* const tensor : {&problem.v, &*problem.initial_state})
      for (std::size_t i = 0; i < tensor->size(); ++i) tensor->set(i, factor * tensor->value(i));
    return explain::forecast_states(problem, 1);
  };
  const std::vector<StateForecast> usual = forecast(1), tiny = forecast(0x1p-730), huge = forecast(0x1p660);
  for (std::size_t i = 0; i < usual.size(); ++i) {
    INFO(kda::words_of(usual[i].stored));
    if (usual[i].stored.scale == kda::StateScale::none) {
      // All is below the smallest step, which rounding by lot still takes at times, or beyond the largest
      // number.
      if (usual[i].stored.rounding == kda::StateRounding::nearest) CHECK(tiny[i].final_state == 1);
      CHECK(tiny[i].o > usual[i].o);
      CHECK(huge[i].overflows());
    } else {
      for (const StateForecast& row : {tiny[i], huge[i]}) {
        CHECK(row.o == Approx(usual[i].o));
        CHECK(row.final_state == Approx(usual[i].final_state));
        CHECK(row.change == Approx(usual[i].change));
      }
    }
  }
}

TEST_CASE("inputs that are not finite leave no forecast of a state", "[explain][state_forecast]") {
  for (const char* const name : {"q", "k", "v", "g"}) {
    kda::Problem problem = kda::parse_regime("control:T=40,H=1,K=16,V=16").build();
    INFO(name);
    tensor::Tensor& input = *name == 'q'   ? problem.q
                            : *name == 'k' ? problem.k
                            : *name == 'v' ? problem.v
                                           : problem.g;
    input.set(7 * 16 + 3, NAN);
    for (const StateForecast& row : explain::forecast_states(problem, 1)) {
      INFO(kda::words_of(row.stored));
      CHECK(std::isnan(row.o));
      CHECK(std::isnan(row.final_state) == (*name != 'q'));
    }
  }
}

TEST_CASE("forecasts of states are the same bits on any number of threads", "[explain][state_forecast]") {
  const kda::Problem problem = kda::parse_regime("varlen:T=261,HV=4").build();
  const auto one = explain::forecast_states(problem, 1), four = explain::forecast_states(problem, 4);
  REQUIRE(one.size() == four.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    CHECK(one[i].o == four[i].o);
    CHECK(one[i].final_state == four[i].final_state);
    CHECK(one[i].change == four[i].change);
  }
}

}  // namespace state_forecast_tests
