// The problems on which kernels of a GPU are compared with the CPU.
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>

#include "fixture/fixture.hpp"
#include "kda/regimes/regimes.hpp"
#include "support/catch.hpp"
#include "support/gradient_problems.hpp"

namespace kda_check::test {

inline constexpr numeric::DType every_dtype[] = {numeric::DType::fp64, numeric::DType::fp32,
                                                 numeric::DType::bf16, numeric::DType::fp16};
inline constexpr numeric::DType replayed_dtypes[] = {numeric::DType::fp32, numeric::DType::bf16,
                                                     numeric::DType::fp16};

/// With a loss of its own, or one.
inline kda::Problem with_any_loss(kda::Problem problem) {
  return problem.has_loss() ? std::move(problem) : with_loss(std::move(problem));
}

// Each says what it tries, and calls body(problem) ...
template <class Body>
void on_fixtures(const Body& body) {
  for (const std::string& path : all_fixture_files()) {
    INFO(path);
    body(fixture::Fixture::open(path).read_problem());
  }
}
/// ... body(problem, its dtype)
template <class Body>
void on_regimes(std::span<const numeric::DType> dtypes, const Body& body) {
  for (const kda::Recipe& recipe : kda::recipes())
    for (const numeric::DType dtype : dtypes) {
      const std::string words = std::string(recipe.name) + ":dtype=" + std::string(numeric::name_of(dtype));
      INFO(words);
      body(kda::parse_regime(words).build(), dtype);
    }
}
/// ... body(spec, seed), of at least `shortest` tokens and fewer than `longest` more.
template <class Body>
void in_shapes(std::initializer_list<std::size_t> Ks, std::initializer_list<std::size_t> Vs,
               std::size_t shortest, std::size_t longest, const Body& body) {
  for (const std::size_t K : Ks)
    for (const std::size_t V : Vs) {
      ProblemSpec spec;
      spec.K = K, spec.V = V, spec.T = shortest + (K * 7 + V) % longest, spec.H = 1 + K % 2,
      spec.HV = spec.H * (1 + V % 3);
      spec.B = 1 + V % 2, spec.state_v_first = V % 3 == 0, spec.safe_gate = K % 2 == 0;
      spec.qk_l2norm = K % 3 == 0, spec.initial_state = V % 4 != 0;
      spec.chunk_size = K % 3 == 0 ? 64 : K % 3 == 1 ? 32 : 16;
      INFO("K " << K << " V " << V << " T " << spec.T << " chunk " << spec.chunk_size);
      body(spec, K * 1000 + V);
    }
}
/// ... body(spec, number) of every option.
template <class Body>
void with_every_option(std::size_t T, const Body& body, int step = 1) {
  for (const kda::Gate gate : {kda::Gate::none, kda::Gate::softplus, kda::Gate::lower_bound})
    for (int options = 0; options < 64; options += step) {
      ProblemSpec spec = spec_with_options(gate, options);
      spec.T = T, spec.safe_gate = options & 8;
      INFO("gate " << kda::name_of(gate) << " options " << options);
      body(spec, static_cast<std::size_t>(options));
    }
}
/// ... of KDA's relatives.
template <class Body>
void on_relatives(std::initializer_list<std::size_t> Vs, const Body& body) {
  for (const std::size_t K : {5, 33, 64, 128, 200})
    for (const std::size_t V : Vs)
      for (auto [name, spec] : relatives()) {
        const std::size_t n = K + V;
        spec.K = K, spec.V = V, spec.T = 40 + n % 60, spec.H = 1 + n % 2, spec.HV = spec.H * (1 + n % 3);
        spec.B = 1 + n % 2, spec.state_v_first = n % 3 == 0, spec.safe_gate = n % 2 == 0;
        spec.chunk_size = n % 3 == 0 ? 64 : n % 3 == 1 ? 32 : 16, spec.dtype = replayed_dtypes[n % 3];
        INFO("K " << K << " V " << V << ' ' << name << ", strength " << static_cast<int>(spec.strength));
        body(spec, n);
      }
}
/// ... body(problem), an element of an input that is infinite or far too large; with its loss, if it has one.
template <class Body>
void with_huge_inputs(const ProblemSpec& spec, bool has_loss, const Body& body) {
  for (int at = 0; at < (has_loss ? 14 : 12); ++at) {
    ProblemSpec own = spec;
    own.qk_l2norm = at % 2 == 0, own.beta_sigmoid = true, own.dtype = numeric::DType::fp64;
    kda::Problem problem = kda::clone(make_problem(own));
    if (has_loss) add_loss(problem);
    tensor::Tensor* const tensors[] = {&problem.q,
                                       &problem.k,
                                       &problem.v,
                                       &problem.g,
                                       &problem.beta,
                                       &*problem.initial_state,
                                       has_loss ? &*problem.output_gradient : nullptr};
    tensors[at / 2]->set(tensors[at / 2]->size() / 2, at % 4 < 2 ? -1e308 * 10 : -1e200);
    INFO("gate " << kda::name_of(spec.gate) << ", K " << spec.K << ", input " << at);
    body(problem);
  }
}

/// Elements whose bits differ; which NaN an operation gives is a processor's.
inline std::size_t differing(std::span<const double> a, std::span<const double> b) {
  REQUIRE(a.size() == b.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    count += std::memcmp(&a[i], &b[i], sizeof(double)) != 0 && !(a[i] != a[i] && b[i] != b[i]);
  return count;
}

}  // namespace kda_check::test
