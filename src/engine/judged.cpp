#include "engine/judged.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "judge/measures/metrics.hpp"
#include "judge/verdict.hpp"

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
                            std::size_t worst, const judge::JudgeOptions& options) {
  report::TensorResult result;
  result.name = tensor.name;
  result.shape = tensor.shape;
  result.dtype = numeric::name_of(tensor.dtype);
  result.limits = judge::at_least_storage(std::move(limits), m);
  const judge::Judgement judgement = judge::judge(m, result.limits, options);
  result.verdict = judgement.verdict;
  result.reason = judgement.reason;
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

void lift(std::vector<judge::Limit>& limits, const TwinReading& twins, const judge::Measures& measures) {
  constexpr double headroom = 1.5;
  /// That of the test (docs/twins.md): a limit that twins break was derived from less than there is.
  constexpr double headroom_beyond = 2.5;
  /// One number is far larger than the largest of seven at times, and a bias of sums over tokens is all it
  /// has.
  const double headroom_of_few = twins.of_few_channels ? 8 : 4;
  /// One twin that breaks down somewhere says nothing of the others; two that do are no exception.
  constexpr double most_of_one_element = 2;
  constexpr double most_of_gradients = 4;
  /// The largest of a few errors of seven twins is not the largest there may be.
  constexpr double most_of_few = 2;
  // As far as it says anything. Beyond, twins that err as much leave open whether an answer that is like them
  // is wrong.
  const bool is_like_them = !measures.has_twins || measures.twins <= 1;
  const double most =
      measures.rms_ratio >= judge::hollow_rms_ratio && is_like_them ? 1 : judge::hollow_rms_ratio;
  for (judge::Limit& limit : limits) {
    if (limit.source != "derived") continue;
    double least = 0;
    if (limit.metric == "scaled_ulp" && limit.value < measures.scaled_ulp.value) {
      // Of few channels the magnitude of a sum may vanish with the sum: what is lost there twins alone know.
      const auto& [of_one, of_two] = twins.scaled_ulps;
      least = twins.of_few_channels ? 4 * of_one
                                    : std::max(std::min(headroom * of_one, most_of_one_element * limit.value),
                                               headroom * of_two);
      if (twins.of_gradient && is_like_them) least = std::max(least, most_of_gradients * limit.value);
      if (twins.of_few_errors && is_like_them) least = std::max(least, most_of_few * limit.value);
    } else if (limit.metric == "rms_ratio" && limit.value < std::max(twins.rms_ratio, measures.rms_ratio)) {
      const double factor = twins.of_few_errors || twins.of_few_channels ? headroom_of_few
                            : twins.rms_ratio > limit.value              ? headroom_beyond
                                                                         : headroom;
      least = std::min(factor * twins.rms_ratio, std::nextafter(most, 0));
      // What is derived is an rms of many errors.
      if (twins.of_few_errors && limit.value < measures.rms_ratio)
        least = std::max(least, headroom * limit.value);
    }
    if (limit.value < least) limit.value = least, limit.source = "twins";
  }
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

/// "rows 63 mod 64, all heads: 5 % too large (395 sigma; error 9.8 x the worst twin)".
std::string sentence_of(const TwinResult& twins) {
  const judge::Excess& worst = twins.judgement.worst;
  if (!twins.likeness.empty()) return fmt::format("{}: {}", twins.place, twins.likeness);
  const std::string error = fmt::format("error {:.3g} x the worst twin", worst.energy);
  if (worst.slope == 0) return fmt::format("{}: {} (limit {:.2g})", twins.place, error, worst.energy_limit);
  const std::string sigmas = worst.sigmas > 0 ? fmt::format("{:.0f} sigma; ", worst.sigmas) : "";
  return fmt::format("{}: {:.2g} % too {} ({}{})", twins.place, 100 * std::fabs(worst.slope),
                     worst.slope > 0 ? "large" : "small", sigmas, error);
}

}  // namespace

void judge_by_twins(report::TensorResult& result, const TwinResult& twins) {
  // Where most of a value is lost it decides by jumps how much: the limit says it.
  const judge::Limit* const rms = judge::find_limit(result.limits, "rms_ratio");
  const bool is_lost = rms != nullptr && (rms->source == "derived" || rms->source == "twins") &&
                       rms->value >= judge::hollow_rms_ratio / 2;
  /// One healthy answer in some 20000 is beyond its twins, and hardly one that much (docs/twins.md,
  /// "Calibration").
  const double clearly_beyond = is_lost ? 3 : 1.5;
  /// Twins of other structures are that far apart at times.
  const double far_beyond = is_lost ? 3 : 2;
  const judge::TwinJudgement& judgement = twins.judgement;
  const judge::Excess& worst = judgement.worst;
  result.twins = {twins.twins,  judgement.ratio, judgement.energy, twins.place,
                  worst.energy, worst.slope,     worst.sigmas,     twins.maps};
  if (judgement.ratio <= 1 || result.verdict == judge::Verdict::inconclusive) return;
  // Whoever has a form that no twin has may set the limit, with a reason; then it decides.
  const judge::Limit* const allowed = judge::find_limit(result.limits, "twins");
  if (allowed != nullptr && judgement.ratio <= allowed->value) return;
  std::string where = sentence_of(twins);
  if (twins.gate_offset)
    where +=
        fmt::format("; as gates make that are off by {:.2g} x 2^-24 exp(A_log): softplus as log2(1 + 2^x)?",
                    *twins.gate_offset);
  if (result.verdict == judge::Verdict::fail) {
    result.reason += "; " + where;
  } else if (twins.gate_offset || (twins.structure_known && judgement.ratio > clearly_beyond) ||
             (judgement.ratio > far_beyond && (judgement.by_slope || judgement.uneven))) {
    result.verdict = judge::Verdict::fail;
    result.reason = where;
  } else {
    result.verdict = judge::Verdict::inconclusive;
    result.reason =
        (twins.structure_known ? "hardly beyond its twins: " : "no emulation of this form: ") + where;
  }
}

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
