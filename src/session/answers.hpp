// Answers to a problem, computed or recorded, and their comparison in one pass of the oracle.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "compare/comparison.hpp"
#include "compare/limits.hpp"
#include "fixture/fixture.hpp"
#include "kda/gradient_oracle.hpp"
#include "kda/oracle.hpp"
#include "kda/regime.hpp"
#include "kda/variants.hpp"
#include "report/result.hpp"
#include "session/requests.hpp"
#include "session/sources.hpp"

namespace kda_check::session {

/// The tensors of one pass of an answer, o and final_state or the gradients, and how it came about.
struct Answered {
  std::string name;  ///< variant or expected group
  bool recorded = false;
  std::string device, arithmetic;
  numeric::DType dtype = numeric::DType::fp32;  ///< of the run, or of the recorded o
  numeric::ComputeFormat compute = numeric::ComputeFormat::fp32;
  compare::Form form = compare::Form::unknown;
  std::optional<tensor::Tensor> o, final_state;
  std::optional<kda::GradientTensors> gradients;  ///< of the backward pass only

  const tensor::Tensor* tensor(std::string_view tensor_name) const;
  void hold(std::string_view tensor_name, tensor::Tensor tensor);
};

Answered computed_answer(const kda::Variant& variant, const kda::RunOptions& options, kda::Answer answer);
Answered computed_gradients(const kda::Variant& variant, const kda::RunOptions& options,
                            kda::GradientTensors gradients);

/// The expected groups of a target, with the tensors of `tensors` they hold: those of one pass.
std::vector<Answered> recorded_answers(const Source& file, const std::vector<std::string>& tensors);

/// An answer judged against the oracle (expected null) or against another answer.
struct Pairing {
  const Answered* got;
  const Answered* expected;
  bool same_bits = false;  ///< a replay is expected: nothing may differ
};

struct CompareRequest {
  const std::vector<std::string>& tensors;
  std::optional<kda::OraclePrecision> oracle;  ///< nullopt: no oracle, hence no magnitudes
  int threads;
  const JudgingRequest& judging;
  const kda::Regime& regime;  ///< of the answers computed
  /// Of the recorded ones, where it is another: chunks of the file's size, whatever size ours have.
  std::optional<kda::Regime> recorded_regime = std::nullopt;
  std::size_t chunk_size = 64;  ///< of the chunk forms, for the magnitudes of their gradients
  std::size_t memory_budget = std::numeric_limits<std::size_t>::max();  ///< for the truth of gradients
  bool series = false;                                                  ///< keep the errors of every token
  std::string fixture = {};                                             ///< what tolerances call the problem
};

/// What was measured of one tensor of a pairing, not yet judged.
struct Measured {
  std::size_t pairing;
  std::string tensor;
  const tensor::Tensor* got;
  compare::Measures measures;
  compare::TokenSeries series;         ///< empty unless asked for
  std::vector<compare::Limit> limits;  ///< derived
};

/// The tensors that both sides of every pairing have, in the order of the pairings. The oracle runs once for
/// all of them.
std::vector<Measured> measured(const kda::Problem& problem, const std::vector<Pairing>& pairings,
                               const CompareRequest& request);

/// The same judged: one case for every pairing, without the fixture's name.
std::vector<report::CaseResult> compared(const kda::Problem& problem, const std::vector<Pairing>& pairings,
                                         const CompareRequest& request);

/// A case about an answer, without fixture, verdict or tensors.
report::CaseResult case_about(const Answered& got, std::string against);

/// Throws Error{input} with `hint` when the truth of the gradients would take more than `budget` bytes.
void check_gradient_memory(const kda::Problem& problem, int threads, std::size_t budget,
                           const std::string& hint);

std::string oracle_name(const std::optional<kda::OraclePrecision>& oracle);

}  // namespace kda_check::session
