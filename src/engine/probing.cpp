#include "engine/probing.hpp"

#include <fmt/format.h>

#include <cmath>

#include "explain/probe/probe.hpp"

namespace kda_check::engine {

namespace {

using report::TensorResult;

const TensorResult* tensor_named(const report::CaseResult& item, std::string_view name) {
  for (const TensorResult& tensor : item.tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

/// The limit on rms_ratio; without one that can be met, sixteen roundings to the element type.
double rms_limit(const TensorResult& tensor) {
  for (const judge::Limit& limit : tensor.limits)
    if (limit.metric == "rms_ratio" && limit.value > 0) return limit.value;
  const auto dtype = numeric::dtype_named(tensor.dtype);
  return 16 * std::ldexp(1.0, -numeric::format_of(dtype.value_or(numeric::DType::fp32)).precision);
}

/// Sequence, head and lane of the worst element of the tensor that failed.
explain::FailurePlace place_of(const kda::Problem& problem, const TensorResult& tensor) {
  explain::FailurePlace place;
  if (!tensor.worst) return place;
  const std::vector<std::size_t>& index = tensor.worst->index;
  if (tensor.name == "final_state") {
    place.sequence = index[0], place.head = index[1];
    place.lane = index[problem.options.state_v_first ? 2 : 3];
    return place;
  }
  for (const kda::Sequence& sequence : problem.sequences())
    if (sequence.batch == index[0] && sequence.begin <= index[1] && index[1] < sequence.end)
      place.sequence = sequence.index;
  place.head = index[2], place.lane = index[3];
  return place;
}

report::ProbeMatch described(const explain::Explanation& item) {
  return {item.convention, item.meaning, item.tensor, item.before, item.after};
}

report::ProbeResult described(const explain::ProbeFinding& finding) {
  report::ProbeResult result;
  for (const explain::Explanation& match : finding.matches) result.matches.push_back(described(match));
  if (finding.nearest) result.nearest = described(*finding.nearest);
  result.conventions = finding.conventions;
  std::string heads;
  for (const std::size_t head : finding.heads) heads += fmt::format("{}{}", heads.empty() ? "" : ",", head);
  if (finding.begin < finding.end)
    result.scope =
        fmt::format("b={} t={}..{} h={} v={}..{}", finding.sequence.batch, finding.begin, finding.end - 1,
                    heads, finding.first_lane, finding.first_lane + finding.lanes - 1);
  return result;
}

}  // namespace

report::ProbeResult probed(const kda::Problem& problem, const Answered& got, const report::CaseResult& failed,
                           int threads) {
  explain::FailedAnswer answer;
  const TensorResult *const o = tensor_named(failed, "o"), *const state = tensor_named(failed, "final_state");
  if (o != nullptr) answer.o = got.tensor("o"), answer.o_limit = rms_limit(*o);
  if (state != nullptr)
    answer.final_state = got.tensor("final_state"), answer.final_state_limit = rms_limit(*state);
  const bool by_o = o != nullptr && (state == nullptr || o->verdict == judge::Verdict::fail);
  return described(explain::probe(problem, answer, place_of(problem, by_o ? *o : *state), threads));
}

}  // namespace kda_check::engine
