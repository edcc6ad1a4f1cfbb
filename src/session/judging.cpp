#include "session/judging.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "compare/metrics.hpp"

namespace kda_check::session {

namespace {

using compare::Measures;

report::PointResult described(const std::string& name, const tensor::Shape& shape, bool state_v_first,
                              const compare::Point& point) {
  report::PointResult result;
  result.index = tensor::index_of(shape, point.element);
  result.place = kda::place(name, result.index, state_v_first);
  // A NaN has no sign worth printing.
  result.got = std::isnan(point.got) ? std::numeric_limits<double>::quiet_NaN() : point.got;
  result.expected =
      std::isnan(point.expected.hi) ? std::numeric_limits<double>::quiet_NaN() : point.expected.hi;
  result.magnitude = point.magnitude;
  result.got_hex = fmt::format("{:a}", result.got);
  result.expected_hex = fmt::format("{:a}", result.expected);
  result.rank = point.rank;
  return result;
}

/// The element a reader should look at first.
compare::Point telling_point(const Measures& m, const std::string& deciding_metric) {
  if (const compare::Metric* const metric = compare::find_metric(deciding_metric))
    if (const compare::Point point = metric->point(m); point.element != compare::no_element) return point;
  if (!m.class_mismatches.empty()) return m.class_mismatches.front();
  return m.has_magnitude ? m.scaled_ulp.point : m.max_ulp.point;
}

}  // namespace

compare::ComparisonOptions comparison_options(const JudgingRequest& request, int threads) {
  compare::ComparisonOptions options;
  options.atol = request.atol.value_or(0);
  options.rtol = request.rtol.value_or(0);
  options.worst = request.worst;
  options.series = request.profile;
  options.threads = threads;
  return options;
}

std::vector<compare::LimitRequest> all_limit_requests(const JudgingRequest& request) {
  std::vector<compare::LimitRequest> requests = request.limits;
  if (request.atol || request.rtol) requests.push_back({"allclose", 0, false, false});
  return requests;
}

report::TensorResult judged(const std::string& name, const tensor::Tensor& got, bool state_v_first,
                            const Measures& m, std::vector<compare::Limit> limits,
                            const JudgingRequest& request, const compare::JudgeOptions& options) {
  return judged(name, got.shape(), got.dtype(), state_v_first, m, std::move(limits), request, options);
}

report::TensorResult judged(const std::string& name, const tensor::Shape& shape, numeric::DType dtype,
                            bool state_v_first, const Measures& m, std::vector<compare::Limit> limits,
                            const JudgingRequest& request, const compare::JudgeOptions& options) {
  report::TensorResult result;
  result.name = name;
  result.shape = shape;
  result.dtype = numeric::name_of(dtype);
  result.limits = compare::merged(std::move(limits), all_limit_requests(request), "command line");
  const compare::Judgement judgement = compare::judge(m, result.limits, options);
  result.verdict = judgement.verdict;
  result.reason = judgement.reason;
  for (const compare::Metric& metric : compare::metrics())
    if (m.has_magnitude || !metric.needs_magnitude) result.metrics.emplace_back(metric.name, metric.value(m));
  for (const std::vector<compare::Point>* const list : {&m.class_mismatches, &m.worst})
    for (const compare::Point& point : *list)
      if (result.points.size() < request.worst)
        result.points.push_back(described(name, shape, state_v_first, point));
  const compare::Point telling = telling_point(m, judgement.metric);
  if (telling.element != compare::no_element) result.worst = described(name, shape, state_v_first, telling);
  if (m.window_token != compare::no_element)
    result.worst_window = fmt::format("b={} t={}..{}", m.window_batch, m.window_token,
                                      std::min(m.window_token + compare::window_tokens, shape[1]) - 1);
  if (m.worst_head != compare::no_element) result.worst_head = fmt::format("h={}", m.worst_head);
  return result;
}

void conclude(report::CaseResult& result) {
  std::vector<compare::Verdict> verdicts;
  for (const report::TensorResult& tensor : result.tensors) verdicts.push_back(tensor.verdict);
  if (verdicts.empty()) return;  // skipped, with its reason
  result.verdict = compare::worst_of(verdicts);
  for (const report::TensorResult& tensor : result.tensors)
    if (tensor.verdict == result.verdict && !tensor.reason.empty()) {
      result.reason = tensor.name + ": " + tensor.reason;
      return;
    }
}

}  // namespace kda_check::session
