#include "session/backward.hpp"

#include <fmt/format.h>

#include <deque>

#include "compare/limits.hpp"
#include "session/selection.hpp"

namespace kda_check::session {

namespace {

using kda::Problem;
using numeric::DType;

/// Every tensor by its own element type.
void refuse_fine_limits(const Problem& problem, const RunPlan& plan, const JudgingRequest& judging,
                        DType dtype) {
  for (const kda::GradientRow& row : kda::gradients())
    for (const std::string& name : plan.gradients)
      if (name == row.name && kda::has_gradient(problem, row.gradient))
        compare::refuse_limits_finer_than_storage(judging.limits, judging.atol.value_or(0),
                                                  judging.rtol.value_or(0),
                                                  kda::gradient_dtype(problem, row.gradient, dtype));
}

/// A deque: pairings point into it.
std::deque<Answered> computed(const Problem& problem, const RunPlan& plan, const RunRequest& request,
                              const std::vector<DType>& dtypes, const CompareRequest& compare,
                              const Log& log) {
  std::deque<Answered> answers;
  for (const DType dtype : dtypes)
    for (const kda::Variant* const variant : plan.variants) {
      if (variant->run_backward == nullptr) continue;
      kda::RunOptions options =
          run_options(*variant, problem, dtype, request.arithmetic, compare.chunk_size, request.threads);
      options.memory_limit = request.limits.memory_budget;
      if (!why_not(*variant, problem, options).empty()) continue;  // the forward pass has said so
      if (log.progress)
        log.progress(
            fmt::format("{}: {} {} backwards", compare.fixture, variant->name, numeric::name_of(dtype)));
      answers.push_back(computed_gradients(*variant, options, variant->run_backward(problem, options)));
    }
  return answers;
}

/// Nothing can be said of a gradient whose input the problem does not have, or does not use.
void drop_what_is_not_there(const Problem& problem, Answered& answer, const Log& log) {
  for (const kda::GradientRow& row : kda::gradients()) {
    tensor::Tensor& held = (*answer.gradients)[static_cast<std::size_t>(row.gradient)];
    if (held.empty() || kda::has_gradient(problem, row.gradient)) continue;
    held = {};
    if (log.warning)
      log.warning(fmt::format("expected/{}/{} is not compared: the problem has no {}, or does not use it",
                              answer.name, row.name, row.of));
  }
}

}  // namespace

std::vector<report::CaseResult> backward_cases(const Problem& problem, const Source* file,
                                               const RunPlan& plan, const RunRequest& request,
                                               const std::vector<DType>& dtypes,
                                               const CompareRequest& compare, const Log& log) {
  for (const DType dtype : dtypes) refuse_fine_limits(problem, plan, request.judging, dtype);
  const std::deque<Answered> answers = computed(problem, plan, request, dtypes, compare, log);
  std::vector<Answered> recorded;
  if (file != nullptr) recorded = recorded_answers(*file, plan.gradients);
  std::erase_if(recorded, [](const Answered& answer) { return !answer.gradients; });
  for (Answered& answer : recorded) drop_what_is_not_there(problem, answer, log);
  std::vector<Pairing> pairings;
  if (plan.against_oracle) {
    for (const Answered& answer : answers) pairings.push_back({&answer, nullptr});
    for (const Answered& answer : recorded) pairings.push_back({&answer, nullptr});
  }
  for (const Answered& expected : recorded)
    if (plan.wants_group(expected.name))
      for (const Answered& answer : answers) pairings.push_back({&answer, &expected});
  if (pairings.empty()) return {};
  CompareRequest of_gradients{plan.gradients,  compare.oracle, compare.threads,
                              compare.judging, compare.regime, compare.recorded_regime};
  of_gradients.chunk_size = compare.chunk_size;
  of_gradients.memory_budget = request.limits.memory_budget;
  of_gradients.fixture = compare.fixture;
  if (log.progress) log.progress(fmt::format("{}: comparing gradients", compare.fixture));
  return compared(problem, pairings, of_gradients);
}

}  // namespace kda_check::session
