#include "judge/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "judge/measures/metrics.hpp"

namespace kda_check::judge {

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass:
      return "pass";
    case Verdict::fail:
      return "fail";
    case Verdict::inconclusive:
      return "inconclusive";
    case Verdict::skipped:
      break;
  }
  return "skipped";
}

namespace {

std::string class_reason(const Measures& m) {
  static constexpr const char* names[] = {"finite", "+inf", "-inf", "NaN"};
  std::string text;
  for (std::size_t got = 0; got < class_count; ++got)
    for (std::size_t expected = 0; expected < class_count; ++expected) {
      if (got == expected || m.classes[got][expected] == 0) continue;
      if (!text.empty()) text += ", ";
      text += fmt::format("{} x {} for {}", m.classes[got][expected], names[got], names[expected]);
    }
  return text;
}

/// From the arithmetic, the inputs and kernels like this one; nobody set it.
bool is_derived(const Limit& limit) { return limit.source == "derived" || limit.source == "twins"; }

/// A derived limit that an answer of nothing but zeros would meet.
bool is_hollow(const Limit& limit) {
  return is_derived(limit) &&
         (!std::isfinite(limit.value) || (limit.metric == "rms_ratio" && limit.value >= hollow_rms_ratio));
}

constexpr std::string_view storage = "storage";

/// Where an answer may err more than zeros would, it decides by jumps how much: one that errs that many times
/// more is wrong.
constexpr double clearly_beyond_nothing = 3;

/// Why these limits show nothing about values that are finite; empty when they do.
std::string hollow_reason(const Measures& m, const std::vector<Limit>& limits) {
  const auto hollow = std::find_if(limits.begin(), limits.end(), is_hollow);
  const bool decided = std::any_of(limits.begin(), limits.end(), [&](const Limit& limit) {
    if (limit.metric == "nonfinite" || !std::isfinite(limit.value) || !find_metric(limit.metric)->is_known(m))
      return false;
    if (limit.source == storage) return limit.value < hollow_rms_ratio;
    return hollow == limits.end() || !is_derived(limit);
  });
  if (decided) return {};
  if (hollow == limits.end())
    return m.least_rms_ratio() < hollow_rms_ratio
               ? "no limit applies but nonfinite"
               : fmt::format("the values are too small for a ratio: {:.3g} rms, in steps of {:.3g}",
                             m.expected_rms, m.smallest_step);
  return fmt::format("the derived limit {}<={:.3g} says next to nothing", hollow->metric, hollow->value);
}

}  // namespace

std::vector<Limit> at_least_storage(std::vector<Limit> limits, const Measures& m) {
  for (Limit& limit : limits) {
    const bool is_ratio = limit.metric.ends_with("rms_ratio") || limit.metric == "bias";
    if (is_ratio && limit.value > 0 && limit.value < m.least_rms_ratio())
      limit.value = m.least_rms_ratio(), limit.source = storage;
  }
  return limits;
}

Judgement judge(const Measures& m, const std::vector<Limit>& limits, const JudgeOptions& options) {
  if (m.elements == 0) return {Verdict::inconclusive, "no elements to compare", ""};
  Judgement failure{Verdict::fail, "", ""};
  const auto fail = [&](std::string_view metric, std::string text) {
    if (failure.metric.empty()) failure.metric = metric;
    if (!failure.reason.empty()) failure.reason += "; ";
    failure.reason += text;
  };
  bool class_fails = false, others_fail = false;
  for (const Limit& limit : limits) {
    const Metric& metric = *find_metric(limit.metric);
    if (!metric.is_known(m)) continue;
    const double value = std::fabs(metric.value(m));
    if (value <= limit.value) continue;
    if (is_derived(limit) && metric.name == "rms_ratio" && limit.value >= 1 &&
        value <= clearly_beyond_nothing * limit.value)
      continue;
    // The truth itself, as far as the element type holds it, has no ratio worth a limit.
    if (is_derived(limit) && m.finite == m.elements && m.differing == 0 && !std::isnan(value)) continue;
    (metric.name == "nonfinite" ? class_fails : others_fail) = true;
    fail(metric.name, metric.name == "nonfinite"
                          ? class_reason(m)
                          : fmt::format("{} {:.3g} > {:.3g}", metric.name, value, limit.value));
  }
  if (m.undecided > 0) {
    std::string reason =
        fmt::format("the oracle is not finite at {} of {} elements", m.undecided, m.elements);
    if (!failure.reason.empty()) reason += "; elsewhere " + failure.reason;
    // Within a head what is not finite may spread, in chunk forms to tokens before it; not to other heads.
    const std::size_t lost = m.mismatched_where_decided();
    if (lost == 0 || !class_fails) return {Verdict::inconclusive, std::move(reason), failure.metric};
    return {Verdict::fail,
            fmt::format("{} element{} of another class in heads where the oracle is finite throughout; {}",
                        lost, lost == 1 ? "" : "s", reason),
            "nonfinite"};
  }
  if (class_fails && !others_fail && m.overflowed > 0 && m.mismatched_where_decided() == 0)
    return {Verdict::inconclusive,
            fmt::format(
                "the truth is beyond the range of the arithmetic at {} of {} elements; in the same heads {}",
                m.overflowed, m.elements, failure.reason),
            "nonfinite"};
  if (!failure.reason.empty()) return failure;
  if (m.both_nan() > 0)
    return {Verdict::inconclusive,
            fmt::format("both sides are NaN at {} of {} elements", m.both_nan(), m.elements), ""};
  if (m.finite == 0) return {Verdict::inconclusive, "no element is finite on both sides", ""};
  if (m.got_all_zero && m.expected_all_zero && !options.zeros_decide)
    return {Verdict::inconclusive, "both sides are zero everywhere", ""};
  if (m.got_all_zero && !m.expected_all_zero && m.differing == 0)
    return {Verdict::inconclusive, "zero everywhere: what is expected is too small for the element type", ""};
  if (std::string reason = hollow_reason(m, limits); !reason.empty())
    return {Verdict::inconclusive, std::move(reason), ""};
  return {Verdict::pass, "", ""};
}

Verdict worst_of(const std::vector<Verdict>& verdicts) {
  const auto has = [&](Verdict wanted) {
    return std::find(verdicts.begin(), verdicts.end(), wanted) != verdicts.end();
  };
  for (const Verdict verdict : {Verdict::fail, Verdict::inconclusive, Verdict::pass, Verdict::skipped})
    if (has(verdict)) return verdict;
  return Verdict::inconclusive;
}

}  // namespace kda_check::judge
