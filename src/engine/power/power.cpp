#include "engine/power/power.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/comparing.hpp"
#include "engine/power/limits.hpp"
#include "engine/twin_heads.hpp"

namespace kda_check::engine {

namespace {

constexpr double close_enough = 1.04;  ///< shares between which the least one lies

/// The least share that is beyond the twins, between shares that were tried.
class Search {
 public:
  Search(const Fault& fault, std::optional<double> by_limits) : fault_(&fault) {
    if (by_limits && *by_limits > 0) start_ = *by_limits;
  }

  const Fault& fault() const { return *fault_; }
  bool is_over() const { return is_found() || (!above_ && below_ && *below_ > most); }
  bool is_found() const {
    return above_ && (*above_ < least || (below_ && *above_ <= *below_ * close_enough));
  }
  double found() const { return below_ ? std::sqrt(*below_ * *above_) : *above_; }

  /// What to try next: around where the statistic, which grows nearly with the share, would be at its limit.
  std::vector<double> next() const {
    if (!above_ && !below_) return {start_};
    if (!above_) return {*below_ * 2, *below_ * 8, *below_ * 64};
    const double guess = *above_ / ratio_above_;
    if (!below_) return {guess / 2, guess, std::sqrt(guess * *above_)};
    const double between = *below_ + (*above_ - *below_) * (1 - ratio_below_) / (ratio_above_ - ratio_below_);
    const double middle =
        std::clamp(between, *below_ * std::sqrt(close_enough), *above_ / std::sqrt(close_enough));
    return {std::max(middle * 0.985, std::sqrt(*below_ * middle)),
            std::min(middle * 1.015, std::sqrt(*above_ * middle)), std::sqrt(*below_ * *above_)};
  }
  void take(double share, double ratio) {
    if (ratio > 1) {
      if (!above_ || share < *above_) above_ = share, ratio_above_ = ratio;
    } else if (!below_ || share > *below_) {
      below_ = share, ratio_below_ = ratio;
    }
    // Where roundings make it go up and down, the least share that is seen counts.
    if (above_ && below_ && *below_ > *above_) below_.reset();
  }

 private:
  static constexpr double most = 1e6, least = 1e-12;

  const Fault* fault_;
  double start_ = 1;
  std::optional<double> below_, above_;
  double ratio_below_ = 0, ratio_above_ = 0;
};

void search(std::vector<Search>& searches, const PowerAnswers& answers, const judge::TruthValues& truth) {
  constexpr int most_rounds = 24;
  for (int round = 0; round < most_rounds; ++round) {
    std::vector<Trial> trials;
    std::vector<Search*> whose;
    for (Search& one : searches) {
      if (one.is_over()) continue;
      for (const double share : one.next()) trials.push_back({&one.fault(), share}), whose.push_back(&one);
    }
    if (trials.empty()) return;
    const std::vector<judge::TwinJudgement> judgements = answers.judged(truth, trials);
    for (std::size_t i = 0; i < trials.size(); ++i) whose[i]->take(trials[i].share, judgements[i].ratio);
  }
}

void by_twins(Power& power, const std::vector<Fault>& faults, const PowerAnswers& answers,
              const judge::TruthValues& truth) {
  constexpr double clearly = 3;  ///< times the least: where the place is asked for
  const std::vector<judge::TwinJudgement> healthy = answers.judged(truth, {{nullptr, 0}});
  if (healthy.empty()) {
    power.twins = 0;
    return;
  }
  power.healthy = healthy.front().ratio;
  if (*power.healthy > 1) return;
  std::vector<Search> searches;
  for (std::size_t i = 0; i < faults.size(); ++i) searches.emplace_back(faults[i], power.faults[i].by_limits);
  search(searches, answers, truth);
  std::vector<Trial> trials;
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (searches[i].is_found()) power.faults[i].by_twins = searches[i].found();
    trials.push_back({&faults[i], clearly * power.faults[i].by_twins.value_or(1)});
  }
  const std::vector<judge::TwinJudgement> judgements = answers.judged(truth, trials);
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (judgements[i].ratio <= 1) continue;
    const judge::Excess& worst = judgements[i].worst;
    power.faults[i].named = judge::place_of(worst.region, worst.head, worst.cell, answers.layout());
    power.faults[i].is_named = is_named(faults[i], worst, answers.layout());
  }
}

/// As `run` derives them; the truth goes to `exact`.
std::vector<judge::Limit> limits_of(const kda::Problem& problem, const PowerAnswers& answers,
                                    const kda::GateStatistics& gates, std::size_t memory_budget,
                                    ExactTensor& exact) {
  const HealthyKernel& kernel = answers.kernel();
  const std::string& tensor = answers.name();
  Answered healthy;
  healthy.dtype = kernel.options.dtype, healthy.compute = kernel.compute();
  healthy.form = kernel.variant->axes.chunk ? judge::Form::chunk : judge::Form::recurrence;
  healthy.chunk_size = kernel.options.chunk_size;
  healthy.tensors.emplace(tensor, answers.healthy().converted_to(answers.storage()));
  Truth truth{problem,
              kda::Pass::forward,
              kda::OraclePrecision::double_double,
              kernel.options.chunk_size,
              kernel.options.threads,
              memory_budget,
              [&](std::size_t) -> const kda::GateStatistics& { return gates; },
              [&](std::size_t rows) {
                return std::async(std::launch::deferred, limit_grounds, std::cref(problem),
                                  kda::Pass::forward, rows, kernel.options.threads)
                    .share();
              }};
  truth.also = into(exact, tensor, problem.dimensions());
  Pairing pairing;
  pairing.got = &healthy, pairing.tensors = {tensor};
  Measured found = std::move(measured(truth, {pairing}).front());
  found.evidence.stable_rms_ratio = answers.stable_rms_ratio(exact.values);
  return judge::bounds(std::move(found.limits), found.evidence, answers.healthy().size());
}

}  // namespace

Power power_of(const kda::Problem& problem, const PowerAnswers& answers, const std::vector<Fault>& faults,
               const kda::GateStatistics& gates, std::size_t memory_budget) {
  const HealthyKernel& kernel = answers.kernel();
  ExactTensor exact(answers.healthy().size(), kernel.compute() == numeric::ComputeFormat::fp32);
  Power power;
  power.limits = limits_of(problem, answers, gates, memory_budget, exact);
  const PowerOfLimits limits(answers, exact, power.limits);
  power.is_finite = limits.is_finite();
  if (!power.is_finite) return power;
  power.healthy_rms_ratio = limits.rms_ratio(), power.healthy_scaled_ulp = limits.scaled_ulp();
  for (const Fault& fault : faults) power.faults.push_back({fault.row, fault.place, {}, limits.least(fault)});
  if (answers.has_twins()) {
    power.twins = kernel.twins.size() - kernel.stable;
    by_twins(power, faults, answers, exact.values);
    for (std::size_t i = 0; i < faults.size(); ++i) {
      PlacePower& place = power.faults[i];
      const double least =
          std::min(place.by_twins.value_or(HUGE_VAL),
                   limits.least(faults[i], judge::verdict_constants.margin).value_or(HUGE_VAL));
      if (std::isfinite(least)) place.by_both = least;
    }
  }
  return power;
}

}  // namespace kda_check::engine
