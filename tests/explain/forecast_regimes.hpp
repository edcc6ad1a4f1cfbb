// Problems to judge forecasts by: families of gates, inputs and keys on which forms of chunk break or do not.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kda/regimes/regimes.hpp"
#include "support/problems.hpp"
#include "support/random.hpp"

namespace kda_check::test {

using numeric::DType;

/// Every gate g, in one head.
inline kda::Problem constant_gates(float g, std::size_t T = 64, int chunk_size = 64) {
  kda::Problem problem = test::make_problem({.T = T, .K = 4, .V = 2, .chunk_size = chunk_size});
  for (std::size_t i = 0; i < problem.g.size(); ++i) problem.g.set(i, static_cast<double>(g));
  return problem;
}

struct Regime {
  std::string name;
  kda::Problem problem;
};

template <class Change>
inline kda::Problem changed(kda::Problem problem, Change change) {
  change(problem);
  return problem;
}

inline std::vector<Regime> constant_gate_regimes() {
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

inline std::vector<Regime> drawn_regimes() {
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

inline std::vector<Regime> spoiled_regimes() {
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

/// Unit keys with cosine `rho` between them (docs/scenarios.md, corr_keys and identical_keys).
inline std::vector<Regime> correlated_key_regimes(const std::vector<std::size_t>& lengths) {
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

}  // namespace kda_check::test
