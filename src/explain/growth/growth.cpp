#include "explain/growth/growth.hpp"

#include <algorithm>
#include <cmath>

#include "kda/problem/excerpt.hpp"
#include "numeric/elementary.hpp"

namespace kda_check::explain {

namespace {

using judge::TokenErrors;
using judge::TokenSeries;

/// Sums over a window, or over a whole head.
struct Pool {
  numeric::ProductSum difference2, expected2, product;
  double max_abs = 0, scaled_ulp = 0;

  template <class Errors>  // of a token, or a pool
  void add(const Errors& errors) {
    difference2.add(errors.difference2);
    expected2.add(errors.expected2);
    product.add(errors.product);
    max_abs = std::max(max_abs, errors.max_abs);
    scaled_ulp = std::max(scaled_ulp, errors.scaled_ulp);
  }
  double rms_ratio() const {
    return std::isfinite(difference2.root()) ? relative_size(difference2, expected2) : HUGE_VAL;
  }
  /// NaN where there is none: the error, or the answer, is not finite.
  double bias() const {
    if (expected2.is_zero()) return 0;
    const double share = quotient(product, expected2);
    return std::isfinite(share) ? share : NAN;
  }
};

std::size_t token_at(const kda::Sequence& sequence, std::size_t position, Origin origin) {
  return origin == Origin::start ? sequence.begin + position : sequence.end - 1 - position;
}

/// [window][head], every sum in the order of the positions.
std::vector<Pool> pooled(const TokenSeries& series, const std::vector<kda::Sequence>& sequences,
                         std::size_t window, Origin origin) {
  std::vector<Pool> pools((kda::longest_of(sequences) + window - 1) / window * series.heads);
  for (const kda::Sequence& sequence : sequences)
    for (std::size_t position = 0; position < sequence.length(); ++position)
      for (std::size_t head = 0; head < series.heads; ++head)
        pools[position / window * series.heads + head].add(
            series.at(sequence.batch, token_at(sequence, position, origin), head));
  return pools;
}

Pool sum_of(std::span<const Pool> pools) {
  Pool sum;
  for (const Pool& pool : pools) sum.add(pool);
  return sum;
}

std::vector<double> middles(const std::vector<Window>& windows) {
  std::vector<double> t;
  for (const Window& item : windows) t.push_back(static_cast<double>(item.first + item.last) / 2 + 1);
  return t;
}

double value_of(const TokenErrors& errors, GrowthMetric metric) {
  return metric == GrowthMetric::scaled_ulp ? errors.scaled_ulp : errors.max_abs;
}

std::optional<Crossing> first_element(const TokenSeries& series, const std::vector<kda::Sequence>& sequences,
                                      GrowthMetric metric, double limit, Origin origin) {
  std::optional<Crossing> first;
  for (const kda::Sequence& sequence : sequences)
    for (std::size_t position = 0; position < sequence.length(); ++position) {
      if (first && position > first->position) break;
      const std::size_t token = token_at(sequence, position, origin);
      for (std::size_t head = 0; head < series.heads; ++head) {
        const TokenErrors& errors = series.at(sequence.batch, token, head);
        const double value = value_of(errors, metric);
        if (value <= limit || (first && position == first->position && value <= first->value)) continue;
        const std::size_t lane = metric == GrowthMetric::scaled_ulp ? errors.ulp_lane : errors.abs_lane;
        first = Crossing{position, sequence.batch, token, head, lane, value};
      }
    }
  return first;
}

std::optional<Crossing> first_window(const TokenSeries& series, const std::vector<kda::Sequence>& sequences,
                                     std::size_t window, double limit, Origin origin) {
  const std::vector<Pool> pools = pooled(series, sequences, window, origin);
  for (std::size_t first = 0; first < pools.size(); first += series.heads) {
    const std::span<const Pool> heads(pools.data() + first, series.heads);
    const double value = sum_of(heads).rms_ratio();
    if (value <= limit) continue;
    const auto worst = std::max_element(heads.begin(), heads.end(), [](const Pool& a, const Pool& b) {
      return a.rms_ratio() < b.rms_ratio();
    });
    const std::size_t position = first / series.heads * window;
    const auto owner = std::find_if(sequences.begin(), sequences.end(),
                                    [&](const kda::Sequence& s) { return s.length() > position; });
    const auto head = static_cast<std::size_t>(worst - heads.begin());
    return Crossing{position, owner->batch, token_at(*owner, position, origin), head, std::nullopt, value};
  }
  return std::nullopt;
}

}  // namespace

std::optional<GrowthMetric> growth_metric(std::string_view name) {
  constexpr std::pair<std::string_view, GrowthMetric> followed[] = {{"rms_ratio", GrowthMetric::rms_ratio},
                                                                    {"scaled_ulp", GrowthMetric::scaled_ulp},
                                                                    {"max_abs", GrowthMetric::max_abs}};
  for (const auto& [known, metric] : followed)
    if (known == name) return metric;
  return std::nullopt;
}

std::string_view name_of(Origin origin) { return origin == Origin::start ? "start" : "end"; }

std::string_view name_of(Trend trend) {
  switch (trend) {
    case Trend::grows:
      return "grows";
    case Trend::falls:
      return "falls";
    case Trend::steady:
      return "steady";
    case Trend::unclear:
      break;
  }
  return "unclear";
}

Fit fit_power_law(std::span<const double> t, std::span<const double> error) {
  std::vector<double> x, y;
  for (std::size_t i = 0; i < t.size(); ++i)
    if (t[i] > 0 && error[i] > 0 && std::isfinite(error[i]))
      x.push_back(numeric::log(t[i])), y.push_back(numeric::log(error[i]));
  Fit fit;
  fit.points = x.size();
  if (fit.points < 2) return fit;
  const auto count = static_cast<double>(fit.points);
  double mean_x = 0, mean_y = 0;
  for (std::size_t i = 0; i < fit.points; ++i) mean_x += x[i] / count, mean_y += y[i] / count;
  double xx = 0, xy = 0, yy = 0;
  for (std::size_t i = 0; i < fit.points; ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    xy += (x[i] - mean_x) * (y[i] - mean_y);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  if (xx == 0) return fit;
  fit.slope = xy / xx;
  const double residual = std::max(0.0, yy - fit.slope * xy);
  fit.r2 = yy == 0 ? 1 : 1 - residual / yy;
  if (fit.points > 2) fit.standard_error = std::sqrt(residual / (count - 2) / xx);
  return fit;
}

Trend trend_of(const Fit& fit) {
  constexpr double least_slope = 0.2, sure = 3, least_r2 = 0.5;
  constexpr std::size_t least_points = 4;
  if (fit.points < least_points) return Trend::unclear;
  const double size = std::fabs(fit.slope);
  if (size >= least_slope && size >= sure * fit.standard_error && fit.r2 >= least_r2)
    return fit.slope > 0 ? Trend::grows : Trend::falls;
  return size < least_slope && fit.standard_error < least_slope ? Trend::steady : Trend::unclear;
}

Growth growth_of(const TokenSeries& series, const std::vector<kda::Sequence>& sequences, std::size_t window,
                 Origin origin) {
  const std::vector<Pool> pools = pooled(series, sequences, window, origin);
  const std::size_t length = kda::longest_of(sequences), count = pools.size() / series.heads;
  Growth growth;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < count; ++i) {
    const Pool all = sum_of({pools.data() + i * series.heads, series.heads});
    growth.windows.push_back({i * window, std::min((i + 1) * window, length) - 1, all.rms_ratio(),
                              all.scaled_ulp, all.max_abs, all.bias()});
    ratios.push_back(all.rms_ratio());
  }
  growth.bias = sum_of(pools).bias();
  const std::vector<double> t = middles(growth.windows);
  growth.fit = fit_power_law(t, ratios);
  growth.trend = trend_of(growth.fit);
  for (std::size_t head = 0; head < series.heads; ++head) {
    HeadGrowth mine;
    std::vector<Pool> parts;
    for (std::size_t i = 0; i < count; ++i) {
      parts.push_back(pools[i * series.heads + head]);
      mine.window_rms_ratio.push_back(parts.back().rms_ratio());
    }
    mine.rms_ratio = sum_of(parts).rms_ratio();
    mine.fit = fit_power_law(t, mine.window_rms_ratio);
    growth.heads.push_back(std::move(mine));
    if (growth.heads[head].rms_ratio > growth.heads[growth.worst_head].rms_ratio) growth.worst_head = head;
  }
  return growth;
}

std::optional<Crossing> first_crossing(const TokenSeries& series, const std::vector<kda::Sequence>& sequences,
                                       std::size_t window, GrowthMetric metric, double limit, Origin origin) {
  if (metric == GrowthMetric::rms_ratio) return first_window(series, sequences, window, limit, origin);
  return first_element(series, sequences, metric, limit, origin);
}

}  // namespace kda_check::explain
