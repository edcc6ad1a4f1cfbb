#include "engine/twin_tensor.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/threads/parallel.hpp"
#include "judge/verdict.hpp"

namespace kda_check::engine {

void TwinTensor::begin(TwinsOf what, std::size_t twins, std::size_t stable, std::optional<double> left) {
  if (test != nullptr) return;
  judge::TwinSetting setting = twin_setting(what, layout, compute, dtype, twins, answers.size());
  setting.stable = stable, setting.left = left;
  test = std::make_unique<judge::TwinTest>(std::move(setting));
}

bool TwinTensor::has_to_measure(std::size_t query_head) const {
  for (std::size_t i = 0; i < heads_per_query_head; ++i)
    if (test->has_to_measure(query_head * heads_per_query_head + i)) return true;
  return false;
}

void TwinTensor::measure(std::size_t query_head,
                         const std::function<judge::HeadValues(std::size_t head, std::size_t i)>& values) {
  for (std::size_t i = 0; i < heads_per_query_head; ++i) {
    const std::size_t head = query_head * heads_per_query_head + i;
    test->measure(head, values(head, i));
  }
}

void conclude(const std::vector<const TwinTensor*>& tensors, int threads, TwinResults& results) {
  std::vector<std::vector<judge::TwinJudgement>> concluded(tensors.size());
  parallel_for(tensors.size(), threads,
               [&](std::size_t i, int) { concluded[i] = tensors[i]->test->conclude(threads); });
  for (std::size_t i = 0; i < tensors.size(); ++i)
    for (std::size_t a = 0; a < concluded[i].size(); ++a)
      results[tensors[i]->answers[a]] = std::move(concluded[i][a]);
}

void TwinParameter::measure(std::size_t query_head, const HeadTruths& truths,
                            const std::vector<Values>& twins) {
  const auto truth = truths.tensors.find(name);
  if (truth == truths.tensors.end() || !has_to_measure(query_head)) return;
  const std::size_t count = per_query_head(), begin = query_head * count;
  const std::span<const double> values = truth->second.subspan((query_head - truths.first) * count, count);
  for (std::size_t i = 0; i < count; ++i) {
    Sums& sums = heads[(begin + i) / per_head];
    sums.errors.resize(twins.size() + answers.size()), sums.to_first.resize(twins.size() + answers.size());
    sums.truth.add_square(values[i]);
    const double first = twins.front().tensor->value(twins.front().first + i);
    const auto add = [&](std::size_t whose, double value) {
      sums.errors[whose].add_square(value - values[i]), sums.to_first[whose].add_square(value - first);
    };
    for (std::size_t f = 0; f < twins.size(); ++f) add(f, twins[f].tensor->value(twins[f].first + i));
    for (std::size_t a = 0; a < answers.size(); ++a) add(twins.size() + a, answers[a]->value(begin + i));
  }
}

double TwinParameter::largest_rms_ratio(std::size_t first) const {
  double largest = 0;
  for (std::size_t f = first; f < twin_count(); ++f) {
    numeric::ProductSum error, truth;
    for (const Sums& sums : heads) error.add(sums.errors[f]), truth.add(sums.truth);
    const double ratio = relative_size(error, truth);
    if (!truth.is_zero() && std::isfinite(ratio)) largest = std::max(largest, ratio);
  }
  return largest;
}

std::optional<judge::TwinJudgement> TwinParameter::judgement(std::size_t answer, std::size_t compared,
                                                             double left, double factor) const {
  /// As for a few errors of other tensors.
  constexpr double few = 2;
  if (twin_count() == 0) return std::nullopt;
  numeric::ProductSum truth, noise, own;
  std::vector<numeric::ProductSum> others(compared);
  for (const Sums& sums : heads) {
    truth.add(sums.truth), noise.add(sums.errors.front()), own.add(sums.to_first[twin_count() + answer]);
    for (std::size_t f = 0; f < compared; ++f) others[f].add(sums.to_first[f]);
  }
  if (truth.is_zero()) return std::nullopt;
  double most = relative_size(noise, truth) * std::sqrt(std::max(left, judge::least_left));
  for (const numeric::ProductSum& other : others) most = std::max(most, relative_size(other, truth));
  judge::TwinJudgement result;
  result.twins = compared, result.place = "the whole tensor";
  result.floor = few * factor * most;
  const double distance = relative_size(own, truth);
  result.energy = distance == 0 ? 0 : distance / most,
  result.ratio = distance == 0 ? 0 : distance / result.floor;
  if (!std::isfinite(result.ratio)) return std::nullopt;
  result.worst.energy = result.energy, result.worst.energy_limit = few * factor;
  result.worst.ratio = result.ratio;
  return result;
}

std::optional<judge::TwinJudgement> TwinParameter::worst_head(std::size_t answer,
                                                              std::size_t compared) const {
  const judge::VerdictConstants& c = judge::verdict_constants;
  const double most_times = c.most_of_few / c.beyond_with_few,
               unit = numeric::format_of(answers[answer]->dtype()).unit_roundoff();
  std::optional<judge::TwinJudgement> result;
  if (twin_count() == 0) return result;
  for (std::size_t head = 0; head < heads.size(); ++head) {
    const Sums& sums = heads[head];
    if (sums.errors.empty() || sums.truth.is_zero()) continue;
    double most = unit;
    for (std::size_t f = 0; f < twin_count(); ++f)
      most = std::max(most, relative_size(sums.errors[f], sums.truth));
    const double energy = relative_size(sums.errors[twin_count() + answer], sums.truth) / most;
    if (!std::isfinite(energy) || (result && energy <= result->energy)) continue;
    result.emplace();
    result->twins = compared;
    result->energy = result->worst.energy = energy, result->worst.energy_limit = most_times;
    result->ratio = result->worst.ratio = energy / most_times;
    result->floor = c.most_of_few * most, result->uneven = true;
    result->worst.head = head, result->place = fmt::format("head {}", head);
  }
  return result;
}

}  // namespace kda_check::engine
