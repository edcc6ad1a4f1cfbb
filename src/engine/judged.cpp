#include "engine/judged.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "judge/measures/metrics.hpp"
#include "judge/verdict.hpp"
#include "report/rows.hpp"

namespace kda_check::engine {

namespace {

using judge::Measures;

report::PointResult described(const TensorOf& tensor, const judge::Point& point) {
  report::PointResult result;
  result.index = tensor::index_of(tensor.shape, point.element);
  result.place = tensor.pool != nullptr ? kda::place_in_call(*tensor.pool, tensor.name, result.index)
                                        : kda::place(tensor.name, result.index, tensor.state_v_first);
  // A NaN has no sign worth printing.
  result.got = std::isnan(point.got) ? std::numeric_limits<double>::quiet_NaN() : point.got;
  result.expected =
      std::isnan(point.expected.hi) ? std::numeric_limits<double>::quiet_NaN() : point.expected.hi;
  result.magnitude = point.magnitude;
  result.got_hex = fmt::format("{:a}", result.got);
  result.expected_hex = fmt::format("{:a}", result.expected);
  result.off_by = point.rank;
  return result;
}

/// The element a reader should look at first.
judge::Point telling_point(const Measures& m, const std::string& deciding_metric) {
  if (const judge::Metric* const metric = judge::find_metric(deciding_metric))
    if (const judge::Point point = metric->point(m); point.element != judge::no_element) return point;
  if (!m.class_mismatches.empty()) return m.class_mismatches.front();
  return m.has_magnitude ? m.scaled_ulp.point : m.max_ulp.point;
}

}  // namespace

judge::ComparisonOptions comparison_options(const plan::Judging& judging, int threads, bool profile) {
  judge::ComparisonOptions options;
  options.atol = judging.atol.value_or(0);
  options.rtol = judging.rtol.value_or(0);
  options.worst = judging.worst_or_usual();
  options.series = profile;
  options.threads = threads;
  return options;
}

report::TensorResult judged(const TensorOf& tensor, const Measures& m, std::vector<judge::Limit> limits,
                            std::size_t worst, const judge::Evidence& evidence) {
  report::TensorResult result;
  result.name = tensor.name;
  result.shape = tensor.shape;
  result.dtype = numeric::name_of(tensor.dtype);
  const judge::Judgement judgement = judge::judge(m, std::move(limits), evidence);
  result.limits = judgement.limits;
  result.verdict = judgement.verdict, result.twins = evidence.twins;
  result.reason = judgement.reason, result.decided_by = judgement.metric;
  if (std::isfinite(judgement.floor)) result.floor = judgement.floor;
  for (const judge::Metric& metric : judge::metrics())
    if (metric.is_known(m)) result.metrics.emplace_back(metric.name, metric.value(m));
  for (const std::vector<judge::Point>* const list : {&m.class_mismatches, &m.worst})
    for (const judge::Point& point : *list)
      if (result.points.size() < worst) result.points.push_back(described(tensor, point));
  const judge::Point telling = telling_point(m, judgement.metric);
  if (telling.element != judge::no_element) result.worst = described(tensor, telling);
  if (m.window_token != judge::no_element && tensor.pool == nullptr)
    result.worst_window = fmt::format("b={} t={}..{}", m.window_batch, m.window_token,
                                      std::min(m.window_token + judge::window_tokens, tensor.shape[1]) - 1);
  if (m.worst_head != judge::no_element) result.worst_head = fmt::format("h={}", m.worst_head);
  return result;
}

report::TensorResult judged_by_bits(const TensorOf& tensor, const tensor::Tensor& got,
                                    const tensor::Tensor& expected, const judge::ComparisonOptions& options,
                                    Sameness sameness, bool zeros_decide, const char* source) {
  judge::ComparisonOptions compared = options;
  compared.nan_bits = sameness == Sameness::data && got.dtype() == expected.dtype();
  judge::Comparison comparison(tensor.name, got, tensor.state_v_first, false, compared);
  comparison.add_all(expected);
  report::TensorResult result =
      judged(tensor, comparison.finish(), {{"nonfinite", 0, source}, {"differing_bits", 0, source}},
             plan::Judging{}.worst_or_usual(), {.zeros_decide = zeros_decide});
  if (sameness == Sameness::data && result.verdict == judge::Verdict::inconclusive &&
      std::memcmp(got.data(), expected.data(), expected.bytes()) == 0)
    result.verdict = judge::Verdict::pass, result.reason.clear();
  // A zero of the other sign is no error of any size.
  if (result.verdict == judge::Verdict::fail && !result.worst && got.dtype() == expected.dtype())
    for (std::size_t i = 0; i < got.size() && !result.worst; ++i)
      if (std::memcmp(got.at(i), expected.at(i), got.bytes() / got.size()) != 0)
        result.worst = described(tensor, {i, got.value(i), {expected.value(i), 0}, 0, 0});
  return result;
}

namespace {

report::TensorResult not_compared(const report::TensorResult& tensor, const std::string& reference) {
  report::TensorResult result;
  result.name = tensor.name, result.shape = tensor.shape, result.dtype = tensor.dtype;
  result.verdict = judge::Verdict::skipped;
  result.reason = fmt::format("not compared: {} fails", reference);
  result.reference_fails = true;
  return result;
}

}  // namespace

void conclude(report::CaseResult& result) {
  std::vector<judge::Verdict> verdicts;
  for (const report::TensorResult& tensor : result.tensors) verdicts.push_back(tensor.verdict);
  if (verdicts.empty()) return;  // skipped, with its reason
  result.verdict = judge::worst_of(verdicts);
  result.reason.clear();
  for (const report::TensorResult& tensor : result.tensors)
    if (tensor.verdict == result.verdict && !tensor.reason.empty()) {
      result.reason = tensor.name + ": " + tensor.reason;
      return;
    }
}

void hold_against(const plan::Expectation& written, report::CaseResult& result) {
  const auto upper = [](judge::Verdict verdict) { return report::upper(judge::name_of(verdict)); };
  const std::string found = upper(result.verdict) + (result.reason.empty() ? "" : " - " + result.reason),
                    where = written.incident.empty() ? std::string() : written.incident + ": ";
  const bool is_so =
      result.verdict == written.verdict && result.reason.find(written.cause) != std::string::npos;
  result.tensors.clear();
  result.verdict = is_so ? judge::Verdict::pass : judge::Verdict::fail;
  result.reason =
      is_so ? where + found
            : fmt::format("{}it is to be {}{}, and it is {}", where, upper(written.verdict),
                          written.cause.empty() ? "" : fmt::format(" for '{}'", written.cause), found);
}

void leave_out_wrong_references(std::span<report::CaseResult> cases) {
  for (const report::CaseResult& suspect : cases) {
    if (!suspect.recorded() || suspect.against != "oracle") continue;
    for (const report::TensorResult& wrong : suspect.tensors) {
      if (wrong.verdict != judge::Verdict::fail) continue;
      for (report::CaseResult& item : cases) {
        if (item.against != suspect.variant) continue;
        for (report::TensorResult& tensor : item.tensors)
          if (tensor.name == wrong.name) tensor = not_compared(tensor, suspect.variant);
        conclude(item);
      }
    }
  }
}

}  // namespace kda_check::engine
