#include "engine/twin_tensor.hpp"

#include <algorithm>
#include <cmath>
#include <span>

namespace kda_check::engine {

void TwinParameter::measure(std::size_t query_head, const HeadTruths& truths,
                            const std::vector<Values>& twins) {
  const auto truth = truths.tensors.find(name);
  if (truth == truths.tensors.end() || !heads[query_head].errors.empty()) return;
  Sums& sums = heads[query_head];
  sums.errors.resize(twins.size()), sums.to_first.resize(twins.size() + answers.size());
  const std::span<const double> values =
      truth->second.subspan((query_head - truths.first) * per_query_head, per_query_head);
  for (std::size_t i = 0; i < per_query_head; ++i) {
    sums.truth.add_square(values[i]);
    const double first = twins.front().tensor->value(twins.front().first + i);
    for (std::size_t f = 0; f < twins.size(); ++f) {
      const double value = twins[f].tensor->value(twins[f].first + i);
      sums.errors[f].add_square(value - values[i]), sums.to_first[f].add_square(value - first);
    }
    for (std::size_t a = 0; a < answers.size(); ++a)
      sums.to_first[twins.size() + a].add_square(
          answers[a]->tensor(name)->value(query_head * per_query_head + i) - first);
  }
}

double TwinParameter::largest_rms_ratio(std::size_t first) const {
  double largest = 0;
  for (std::size_t f = first; f < (heads.empty() ? 0 : heads.front().errors.size()); ++f) {
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
  if (heads.empty() || heads.front().errors.empty()) return std::nullopt;
  const std::size_t twins = heads.front().errors.size();
  numeric::ProductSum truth, noise, own;
  std::vector<numeric::ProductSum> others(compared);
  for (const Sums& sums : heads) {
    truth.add(sums.truth), noise.add(sums.errors.front()), own.add(sums.to_first[twins + answer]);
    for (std::size_t f = 0; f < compared; ++f) others[f].add(sums.to_first[f]);
  }
  if (truth.is_zero()) return std::nullopt;
  double most = relative_size(noise, truth) * std::sqrt(std::max(left, judge::least_left));
  for (const numeric::ProductSum& other : others) most = std::max(most, relative_size(other, truth));
  judge::TwinJudgement result;
  result.floor = few * factor * most;
  const double distance = relative_size(own, truth);
  result.energy = distance == 0 ? 0 : distance / most,
  result.ratio = distance == 0 ? 0 : distance / result.floor;
  if (!std::isfinite(result.ratio)) return std::nullopt;
  result.worst.energy = result.energy, result.worst.energy_limit = few * factor;
  result.worst.ratio = result.ratio;
  return result;
}

}  // namespace kda_check::engine
