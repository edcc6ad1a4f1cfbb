// Problems with a loss, one for each option, and the truth of their gradients.
#pragma once

#include <utility>
#include <vector>

#include "support/gradients.hpp"
#include "support/loss.hpp"
#include "support/problems.hpp"

namespace kda_check::test {

inline kda::Problem problem_with_loss(const ProblemSpec& spec, std::uint64_t seed = 1) {
  return with_loss(make_problem(spec, seed), seed);
}

using NamedSpec = std::pair<const char*, ProblemSpec>;
inline std::vector<NamedSpec> every_option() {
  std::vector<NamedSpec> specs;
  const auto add = [&](const char* name, auto change) {
    ProblemSpec spec;
    spec.T = 9, spec.K = 5, spec.V = 3;
    change(spec);
    specs.emplace_back(name, spec);
  };
  add("plain", [](ProblemSpec&) {});
  add("packed, one sequence empty, one of one token, and no initial state", [](ProblemSpec& s) {
    s.T = 12, s.cu_seqlens = {0, 5, 5, 6, 12}, s.initial_state = false;
  });
  add("l2 norm, lower bound, sigmoid, GVA, V-first, batch", [](ProblemSpec& s) {
    s.B = 2, s.H = 2, s.HV = 4, s.T = 5, s.qk_l2norm = s.beta_sigmoid = s.state_v_first = true;
    s.gate = kda::Gate::lower_bound;
  });
  add("softplus, negative eigenvalues, packed", [](ProblemSpec& s) {
    s.gate = kda::Gate::softplus, s.beta_sigmoid = s.allow_neg_eigval = true;
    s.cu_seqlens = {0, 4, 4, 9}, s.K = 9, s.V = 10;
  });
  add("lower bound without A_log", [](ProblemSpec& s) { s.gate = kda::Gate::lower_bound, s.A_log = false; });
  add("softplus without dt_bias", [](ProblemSpec& s) { s.gate = kda::Gate::softplus, s.dt_bias = false; });
  return specs;
}

/// KDA's relatives, which BigReverse does not know.
inline std::vector<NamedSpec> relatives() {
  std::vector<NamedSpec> specs;
  for (const bool scalar_decay : {false, true})
    for (const kda::Strength strength : {kda::Strength::head, kda::Strength::value, kda::Strength::gates}) {
      ProblemSpec spec;
      spec.H = 2, spec.HV = 4, spec.T = 6, spec.K = 5, spec.V = 3;
      spec.scalar_decay = scalar_decay, spec.strength = strength;
      spec.gate = scalar_decay ? kda::Gate::softplus : kda::Gate::none;
      spec.qk_l2norm = true, spec.beta_sigmoid = strength != kda::Strength::gates;
      specs.emplace_back(scalar_decay ? "one decay for all K" : "a decay for each channel", spec);
    }
  return specs;
}

inline const kda::GradientTruth& of(const kda::GradientTruths& truths, kda::Gradient gradient) {
  return truths[static_cast<std::size_t>(gradient)];
}

}  // namespace kda_check::test
