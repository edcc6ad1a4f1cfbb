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

constexpr std::string_view derived = "derived", stable = "stable", storage = "storage";

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

/// "rows 63 mod 64, all heads: 5 % too large (395 sigma; error 9.8 x the worst twin)".
std::string sentence_of(const TwinJudgement& twins) {
  constexpr double nothing_is_there = 1e-3;
  const Excess& worst = twins.worst;
  if (std::fabs(worst.slope + 1) < nothing_is_there) return twins.place + ": zero";
  const std::string error = fmt::format("error {:.3g} x the worst twin", worst.energy);
  if (worst.slope == 0) return fmt::format("{}: {} (limit {:.2g})", twins.place, error, worst.energy_limit);
  const std::string sigmas = worst.sigmas > 0 ? fmt::format("{:.0f} sigma; ", worst.sigmas) : "";
  const double percent = 100 * std::fabs(worst.slope);
  const std::string off = percent >= 99.5
                              ? fmt::format("{:.2g} times what is expected", 1 + worst.slope)
                              : fmt::format("{:.2g} % too {}", percent, worst.slope > 0 ? "large" : "small");
  return fmt::format("{}: {} ({}{})", twins.place, off, sigmas, error);
}

class Decision {
 public:
  Decision(const Measures& measures, std::vector<Limit> limits, const Evidence& evidence)
      : m_(measures), evidence_(evidence) {
    result_.limits = overlaid(bounds(std::move(limits), evidence, m_.elements), evidence.by_hand);
    for (Limit& limit : result_.limits) {
      // No ratio is asked for that a correctly rounded output could not meet: where the values are hardly
      // larger than the smallest steps of their element type, half of one.
      const bool is_ratio = limit.metric.ends_with("rms_ratio") || limit.metric == "bias";
      if (is_ratio && limit.value > 0 && limit.value < m_.least_rms_ratio())
        limit.value = m_.least_rms_ratio(), limit.source = storage;
    }
  }

  Judgement made() {
    result_.floor = floor_of_test();
    if (m_.elements == 0)
      decide(Verdict::inconclusive, "no elements to compare");
    else if (!fails() && !is_beyond_twins() && !shows_nothing())
      result_.verdict = Verdict::pass;
    if (result_.verdict == Verdict::inconclusive && evidence_.undecided)
      result_.verdict = *evidence_.undecided;
    if (result_.verdict == Verdict::pass) result_.reason.clear();
    return std::move(result_);
  }

 private:
  /// The least error that is seen of finite values.
  double floor_of_test() const {
    // Whoever takes all limits away asks for no verdict.
    double floor = HUGE_VAL;
    const Limit* const rms = find_limit(result_.limits, "rms_ratio");
    if (rms != nullptr && metric_is_known(*rms))
      floor =
          evidence_.twins ? std::min(most_beyond_twins() * evidence_.twins->floor, rms->value) : rms->value;
    const bool decide = std::ranges::any_of(result_.limits, [&](const Limit& limit) {
      const bool is_other = limit.metric != "rms_ratio" && rms == nullptr;
      return limit.metric != "nonfinite" && std::isfinite(limit.value) && metric_is_known(limit) &&
             (is_other || is_set(limit));
    });
    return decide ? 0 : floor / evidence_.terms;
  }
  /// As what has to be met to the bit is.
  static bool is_set(const Limit& limit) {
    return limit.source != derived && limit.source != stable && limit.source != storage;
  }
  bool metric_is_known(const Limit& limit) const { return find_metric(limit.metric)->is_known(m_); }

  bool products_are_narrow() const {
    return numeric::row_of(evidence_.compute).precision <
           numeric::row_of(numeric::ComputeFormat::fp32).precision;
  }

  bool decide(Verdict verdict, std::string reason, std::string_view metric = "") {
    result_.verdict = verdict, result_.reason = std::move(reason);
    if (result_.metric.empty()) result_.metric = metric;
    return true;
  }
  void add(std::string_view metric, const std::string& text) {
    if (result_.metric.empty()) result_.metric = metric;
    result_.reason += (result_.reason.empty() ? "" : "; ") + text;
  }

  /// Rules 1 and 2.
  bool fails() {
    const std::size_t lost = m_.undecided + m_.overflowed;
    bool by_bounds = false;
    if (!evidence_.unlicensed.empty()) add("", "rounding: " + evidence_.unlicensed);
    for (const Limit& limit : result_.limits) {
      const Metric& metric = *find_metric(limit.metric);
      if (!metric.is_known(m_)) continue;
      const double value = std::fabs(metric.value(m_));
      if (value <= limit.value) continue;
      if (limit.source == derived && metric.name == "scaled_ulp" && may_lose(value, limit.value)) continue;
      if (metric.name == "nonfinite") {
        const std::size_t decided = m_.mismatched_where_decided(evidence_.backward);
        if (lost > 0 && static_cast<double>(decided) <= limit.value) continue;
        add(metric.name, lost == 0
                             ? class_reason(m_)
                             : fmt::format("{} element{} of another class where the oracle is within range",
                                           decided, decided == 1 ? "" : "s"));
        continue;
      }
      // The truth itself, as far as the element type holds it, has no ratio worth a limit.
      if ((limit.source == derived || limit.source == stable) && m_.finite == m_.elements &&
          m_.differing == 0 && !std::isnan(value))
        continue;
      add(metric.name, fmt::format("{} {:.3g} > {:.3g}", metric.name, value, limit.value));
      by_bounds = by_bounds || !is_set(limit);
    }
    if (!evidence_.not_as_declared.empty()) add("", "not as declared: " + evidence_.not_as_declared);
    if (result_.reason.empty()) return false;
    if (by_bounds && !evidence_.computes_as.empty() && evidence_.unlicensed.empty())
      result_.reason = fmt::format("algorithm: it computes as {}: what that loses, not its code; {}",
                                   evidence_.computes_as, result_.reason);
    if (lost > 0) result_.reason += "; " + lost_text();
    if (evidence_.twins && is_beyond(1)) result_.reason += "; " + sentence_of(*evidence_.twins);
    result_.verdict = Verdict::fail;
    return true;
  }

  /// Whether an element may lose so many units: elements are a region of the test, which knows more of them,
  /// and of terms of chunk forms that cancel where the recurrence has none, or smaller ones that are rounded
  /// more.
  bool may_lose(double units, double limit) const {
    const VerdictConstants& c = verdict_constants;
    const bool is_whole = evidence_.computation_is_whole;
    if (!evidence_.twins) return is_whole && (units <= c.margin * limit || units > c.no_terms);
    if (is_beyond(1)) return false;
    return units <= (is_whole ? c.margin_of_whole : c.margin) * limit ||
           ((is_whole || evidence_.backward) && units > c.no_terms) ||
           (evidence_.backward && (products_are_narrow() || evidence_.chunks_cancel));
  }

  /// How far an output may be beyond its twins, or by hand.
  bool is_beyond(double most) const {
    const Limit* const allowed = find_limit(result_.limits, "twins");
    return evidence_.twins->ratio > (allowed != nullptr ? std::max(allowed->value, 1.0) : most);
  }

  /// Statistic over limit that is no chance.
  double most_beyond_twins() const {
    if (m_.elements < verdict_constants.few_errors && !evidence_.computation_is_whole)
      return verdict_constants.beyond_with_few;
    return evidence_.computation_is_known ? verdict_constants.beyond_its_computation
                                          : verdict_constants.beyond_all_algorithms;
  }

  /// Rule 3.
  bool is_beyond_twins() {
    if (!evidence_.twins) return false;
    const bool is_known = evidence_.computation_is_known;
    const bool is_of_a_region = evidence_.twins->by_slope || evidence_.twins->uneven;
    const double most = most_beyond_twins();
    if ((is_known || is_of_a_region) && is_beyond(most))
      return decide(Verdict::fail, sentence_of(*evidence_.twins));
    // A region or a gain that is hardly beyond the widest of them leaves it open.
    if (is_beyond(is_of_a_region && !is_known ? verdict_constants.beyond_its_computation : most))
      return decide(Verdict::inconclusive,
                    "computes unlike any known kernel: " + sentence_of(*evidence_.twins));
    return false;
  }

  std::string lost_text() const {
    return m_.undecided > 0
               ? fmt::format("the oracle is not finite at {} of {} elements", m_.undecided, m_.elements)
               : fmt::format("the truth is beyond the range of the arithmetic at {} of {} elements",
                             m_.overflowed, m_.elements);
  }

  /// Rule 4.
  bool shows_nothing() {
    const auto open = [&](std::string reason) { return decide(Verdict::inconclusive, std::move(reason)); };
    if (m_.undecided + m_.overflowed > 0 && m_.finite == 0) return open(lost_text());
    if (m_.both_nan() > 0)
      return open(fmt::format("both sides are NaN at {} of {} elements", m_.both_nan(), m_.elements));
    if (m_.finite == 0) return open("no element is finite on both sides");
    if (m_.got_all_zero && m_.expected_all_zero)
      return !evidence_.zeros_decide && open("both sides are zero everywhere");
    if (m_.got_all_zero && m_.differing == 0)  // the truth, as far as it can be stored
      return !evidence_.zeros_decide &&
             open("zero everywhere: what is expected is too small for the element type");
    const double most = evidence_.floor.value_or(evidence_.of_two_outputs ? verdict_constants.floor_of_two
                                                                          : verdict_constants.floor);
    if (result_.floor <= most) return false;
    if (!std::isfinite(result_.floor)) return open("no limit applies but nonfinite");
    if (m_.least_rms_ratio() > most)
      return open(fmt::format("the values are too small for a ratio: {:.3g} rms, in steps of {:.3g}",
                              m_.expected_rms, m_.smallest_step));
    return open(fmt::format("an error below {:.2g} % of its terms is not seen here", 100 * result_.floor));
  }

  const Measures& m_;
  const Evidence& evidence_;
  Judgement result_;
};

}  // namespace

std::vector<Limit> bounds(std::vector<Limit> limits, const Evidence& evidence, std::size_t elements) {
  const bool are_few = evidence.is_sum_over_tokens || elements < verdict_constants.few_errors;
  for (Limit& limit : limits) {
    const double read = evidence.stable_rms_ratio;
    if (limit.source != derived || limit.metric != "rms_ratio" || read == 0) continue;
    const VerdictConstants& c = verdict_constants;
    const double operand = numeric::row_of(evidence.compute).operand_error,
                 sum = std::min(operand, numeric::row_of(numeric::ComputeFormat::fp32).operand_error);
    const double value =
        are_few
            ? std::clamp(limit.value, c.margin_of_few * read,
                         std::max(c.most_of_few * read, c.least_steps * operand * evidence.terms))
            : std::clamp(limit.value, c.least_margin * read, std::max(c.margin * read, c.least_steps * sum));
    if (value != limit.value) limit.value = value, limit.source = stable;
  }
  return limits;
}

Judgement judge(const Measures& measures, std::vector<Limit> limits, const Evidence& evidence) {
  return Decision(measures, std::move(limits), evidence).made();
}

Verdict worst_of(const std::vector<Verdict>& verdicts) {
  for (const Verdict verdict : {Verdict::fail, Verdict::inconclusive, Verdict::pass, Verdict::skipped})
    if (std::ranges::find(verdicts, verdict) != verdicts.end()) return verdict;
  return Verdict::inconclusive;
}

}  // namespace kda_check::judge
