// An answer that is there: the tensors of one pass, and how it came about.
#pragma once

#include <string>

#include "judge/limits.hpp"
#include "kda/problem/passes.hpp"
#include "plan/plan.hpp"
#include "plan/reproduction.hpp"
#include "report/document.hpp"

namespace kda_check::engine {

/// How an answer came about.
struct Described {
  std::string name;  ///< of the variant, the recorded group, the program
  report::Role role = report::Role::variant;
  kda::Pass pass = kda::Pass::forward;
  std::string device, arithmetic;
  numeric::DType dtype = numeric::DType::fp32;  ///< of o
  numeric::ComputeFormat compute = numeric::ComputeFormat::fp32;
  std::string compute_assumed_from;  ///< "the element type of its o"; empty when somebody said it
  std::vector<std::string> unknown;  ///< that it has and the format does not
  judge::Form form = judge::Form::unknown;
  plan::Declaration said;  ///< how it computes, as far as it says so
  kda::Segments segments;  ///< the parts it is known to be computed in
  std::size_t chunk_size = 64;

  /// The narrowest range of exponents on the way to it: chunk forms keep operands in its element type.
  const numeric::Format& range() const;
};

struct Answered : Described {
  kda::Tensors tensors;

  const tensor::Tensor* tensor(std::string_view tensor_name) const;
};

/// What the plan knows of an answer of `problem`, without tensors.
Answered described(const plan::Answer& answer, kda::Pass pass, const plan::Problem& problem);
/// What a group of a file says of itself, beside a problem with such operands.
void describe_as_said(Described& answer, const fixture::ExpectedGroup& group, numeric::DType operands);

/// What was answered to a call on a pool, in its ordinary form (kda/pool/pool.hpp). A state that is stored
/// nowhere is nobody's to judge: it counts as right.
kda::Tensors of_ordinary_form(const kda::Problem& problem, kda::Tensors answer);
/// Of states that were stored as codes half a step of their format is no error, and by lot a whole one:
/// final_state is without it then. state_in_fp64 is what it is to be.
void allow_for_codes(const kda::Problem& problem, kda::Tensors& ordinary);

/// A case about an answer, without verdict or tensors.
report::CaseResult case_about(const Answered& got, std::string against);

}  // namespace kda_check::engine
