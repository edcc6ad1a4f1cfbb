// From measures to the results of reports: verdicts, with figures and places.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "judge/measures/comparison.hpp"
#include "judge/verdict.hpp"
#include "kda/pool/pool.hpp"
#include "plan/request.hpp"
#include "report/document.hpp"
#include "tensor/tensor.hpp"

namespace kda_check::engine {

/// The tensor that was measured.
struct TensorOf {
  const std::string& name;
  const tensor::Shape& shape;
  numeric::DType dtype;
  bool state_v_first;
  const kda::PoolCall* pool = nullptr;  ///< places are those of this call, of whose ordinary form it is
};

/// `limits`: derived, or those that apply. `worst`: points to list.
report::TensorResult judged(const TensorOf& tensor, const judge::Measures& measures,
                            std::vector<judge::Limit> limits, std::size_t worst,
                            const judge::Evidence& evidence = {});

/// What two tensors that must be the same are.
enum class Sameness : unsigned char {
  answers,  ///< numbers: NaN on both sides decides nothing
  data      ///< bytes, whatever they say
};
/// Whether every bit is the same; `source` of that limit.
report::TensorResult judged_by_bits(const TensorOf& tensor, const tensor::Tensor& got,
                                    const tensor::Tensor& expected, const judge::ComparisonOptions& options,
                                    Sameness sameness, bool zeros_decide, const char* source);

/// `profile`: keep what a report needs for drawings, 48 bytes for every token and head.
judge::ComparisonOptions comparison_options(const plan::Judging& judging, int threads, bool profile);

/// The verdict and the reason of a case from those of its tensors.
void conclude(report::CaseResult& result);

/// A case passes where its verdict and its reason are as written; both become the reason.
void hold_against(const plan::Expectation& written, report::CaseResult& result);

/// Of the cases of one source: what is held against a recorded answer that itself fails against the oracle is
/// not compared with it. Nothing is known by it of who answers, and one wrong answer is one failure.
void leave_out_wrong_references(std::span<report::CaseResult> cases);

}  // namespace kda_check::engine
