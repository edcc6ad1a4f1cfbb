#include "engine/twin_tensor.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/threads/parallel.hpp"
#include "judge/verdict.hpp"

namespace kda_check::engine {

void TwinTensor::begin(TwinsOf what, std::size_t twins, std::size_t stable, std::optional<double> left,
                       std::size_t every) {
  if (test != nullptr) return;
  judge::TwinSetting setting = twin_setting(what, layout, compute, dtype, twins, answers.size());
  setting.stable = stable, setting.left = left;
  if (every > 1)
    for (std::size_t head = 0; head < layout.heads; ++head)
      setting.in_full.push_back(head / heads_per_query_head % every == 0);
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
    if (test->has_to_measure(head)) test->measure(head, values(head, i));
  }
}

bool TwinTensor::settle(std::size_t query_head,
                        const std::function<judge::HeadValues(std::size_t head, std::size_t i)>& values) {
  bool all = true;
  for (std::size_t i = 0; i < heads_per_query_head; ++i) {
    const std::size_t head = query_head * heads_per_query_head + i;
    if (test->has_to_measure(head) && !test->settle(head, values(head, i))) all = false;
  }
  return all;
}

void conclude(const std::vector<const TwinTensor*>& tensors, int threads, TwinResults& results) {
  std::vector<std::vector<judge::TwinJudgement>> concluded(tensors.size());
  parallel_for(tensors.size(), threads,
               [&](std::size_t i, int) { concluded[i] = tensors[i]->test->conclude(threads); });
  for (std::size_t i = 0; i < tensors.size(); ++i)
    for (std::size_t a = 0; a < concluded[i].size(); ++a)
      results[tensors[i]->answers[a]] = std::move(concluded[i][a]);
}

bool TwinParameter::measure(std::size_t query_head, const HeadTruths& truths,
                            const std::vector<Values>& twins) {
  const auto truth = truths.tensors.find(name);
  if (truth == truths.tensors.end() || !has_to_measure(query_head)) return true;
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
  const std::span<Sums> own(&heads[query_head * heads_per_query_head], heads_per_query_head);
  const bool are_first_twin = std::ranges::all_of(own, [&](const Sums& sums) {
    return std::all_of(sums.to_first.begin() + static_cast<std::ptrdiff_t>(twins.size()), sums.to_first.end(),
                       [](const numeric::ProductSum& distance) { return distance.is_zero(); });
  });
  constexpr double most = 0.1;  // as of other tensors
  const bool is_settled =
      are_first_twin && !is_in_full(query_head) && std::ranges::all_of(own, [&](const Sums& sums) {
        return relative_size(sums.errors.front(), sums.truth) <= most;
      });
  for (Sums& sums : own) {
    if (is_settled)
      sums.errors.resize(1);
    else if (twins.size() == 1)
      sums = {};
  }
  return is_settled || twins.size() > 1;
}

bool TwinParameter::reopen() {
  constexpr double far_more = 4;
  const auto share = [](const Sums& sums) { return relative_size(sums.errors.front(), sums.truth); };
  std::vector<double> shares;
  for (const Sums& sums : heads)
    if (!sums.errors.empty() && !is_settled(sums) && std::isfinite(share(sums)))
      shares.push_back(share(sums));
  std::ranges::sort(shares);
  const double usual = shares.empty() ? 0 : shares[(shares.size() - 1) / 2];
  bool any = false;
  for (std::size_t head = 0; head < heads.size(); ++head) {
    if (!is_settled(heads[head]) || !(share(heads[head]) > far_more * usual)) continue;
    const std::size_t query_head = head / heads_per_query_head;
    std::fill_n(heads.begin() + static_cast<std::ptrdiff_t>(query_head * heads_per_query_head),
                heads_per_query_head, Sums());
    reopened.insert(query_head);
    any = true;
  }
  return any;
}

double TwinParameter::largest_rms_ratio(std::size_t first) const {
  double largest = 0;
  // What is settled errs as the first twin does; the others do so beside it as in the heads where they ran.
  numeric::ProductSum truth, of_first, of_first_in_full;
  for (const Sums& sums : heads) {
    if (sums.errors.empty()) continue;
    truth.add(sums.truth), of_first.add(sums.errors.front());
    if (!is_settled(sums)) of_first_in_full.add(sums.errors.front());
  }
  const bool any_settled = std::ranges::any_of(heads, is_settled) && !of_first_in_full.is_zero();
  for (std::size_t f = first; f < twin_count(); ++f) {
    numeric::ProductSum error;
    for (const Sums& sums : heads)
      if (sums.errors.size() > 1) error.add(sums.errors[f]);
    double ratio = relative_size(error, truth);
    if (any_settled) ratio *= relative_size(of_first, of_first_in_full);
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
    if (is_settled(sums)) continue;
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
    if (sums.errors.empty() || is_settled(sums) || sums.truth.is_zero()) continue;
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
