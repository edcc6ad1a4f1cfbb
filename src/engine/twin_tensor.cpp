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
  sums.errors.resize(twins.size());
  const std::span<const double> values =
      truth->second.subspan((query_head - truths.first) * per_query_head, per_query_head);
  for (std::size_t i = 0; i < per_query_head; ++i) {
    sums.truth.add_square(values[i]);
    for (std::size_t f = 0; f < twins.size(); ++f)
      sums.errors[f].add_square(twins[f].tensor->value(twins[f].first + i) - values[i]);
  }
}

double TwinParameter::largest_rms_ratio(double most) const {
  std::vector<double> ratios;
  for (std::size_t f = 0; f < (heads.empty() ? 0 : heads.front().errors.size()); ++f) {
    numeric::ProductSum error, truth;
    for (const Sums& sums : heads) error.add(sums.errors[f]), truth.add(sums.truth);
    const double ratio = relative_size(error, truth);
    if (!truth.is_zero() && std::isfinite(ratio)) ratios.push_back(ratio);
  }
  if (ratios.size() < judge::fewest_twins) return 0;
  std::ranges::sort(ratios);
  const auto fit = static_cast<std::size_t>(std::ranges::upper_bound(ratios, most) - ratios.begin());
  return ratios[std::max(fit, judge::fewest_twins) - 1];
}

}  // namespace kda_check::engine
