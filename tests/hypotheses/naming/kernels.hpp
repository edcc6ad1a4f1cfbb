// Wrong kernels that naming is asked about, and what it says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hypotheses/naming/faulty_output.hpp"
#include "hypotheses/naming/naming.hpp"
#include "support/problems.hpp"

namespace naming_tests {

using namespace kda_check;
using kda::Gate;
using numeric::DType;
using tensor::Tensor;

/// A generic case, with the options that a fault is about.
struct Case {
  std::size_t T = 130, K = 48, V = 32, H = 1, HV = 1;
  Gate gate = Gate::none;
  bool l2norm = false, sigmoid = false, doubled = false, v_first = false;
  bool slow = false;        ///< a chunk leaves something of the state before it
  bool small_keys = false;  ///< of lengths about the root of epsilon, and about epsilon
  double scale = 0.2;
  std::vector<std::int64_t> cu_seqlens;
};
kda::Problem problem_of(const Case& c, std::uint64_t seed = 3);
/// The generic case, with what a fault needs in order to apply.
Case case_for(const std::string& name);

/// A kernel with exactly one mistake, or two ("exp2 and beta_twice"), in plain loops over scalars: double,
/// rounded once at the end. Written from the formulas, and apart from what it tests. `place` is the token of
/// mistakes about one token.
kda::Answer mutant(const kda::Problem& p, const std::string& mistake, DType dtype = DType::fp32,
                   std::size_t place = 0);
/// A kernel in chunks of 64 with one mistake of that form, in plain loops over scalars. One head, gates none.
kda::Answer chunk_mutant(const kda::Problem& p, const std::string& mistake, DType dtype);

hypotheses::Naming probed(const kda::Problem& problem, const kda::Answer& answer,
                          const hypotheses::FailurePlace& place = {});
/// Of the causes.
std::string names(const hypotheses::Naming& finding);
/// Of the root of the squares, what differs.
double relative_error(const Tensor& got, const Tensor& right);

}  // namespace naming_tests
