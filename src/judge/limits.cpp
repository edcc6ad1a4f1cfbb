#include "judge/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "base/error.hpp"
#include "base/names.hpp"
#include "judge/measures/metrics.hpp"
#include "judge/measures/sides.hpp"
#include "numeric/elementary.hpp"
#include "numeric/product_sum.hpp"

namespace kda_check::judge {

namespace {

using numeric::ComputeFormat;

/// Of errors that are independent. Beyond any that says something their sum will do.
double both(double a, double b) { return std::max(a, b) < 0x1p500 ? numeric::root_of_squares(a, b) : a + b; }

/// Roundings of one write to the state, in units: both operands of a product; of wider ones the prediction,
/// the difference from v, beta times it and k times that.
double roundings_of_write(ComputeFormat compute) { return is_narrow(compute) ? 2 : 4; }

/// The largest relative error of an operand of a triangular solve: narrow operands are made of what was
/// solved for in tf32 at least.
double solving_error(ComputeFormat compute) {
  return std::min(numeric::row_of(compute).operand_error, numeric::row_of(ComputeFormat::tf32).operand_error);
}

double rms_lost(const Computation& computation, const Condition& condition) {
  const double operand = numeric::row_of(computation.compute).operand_error;
  const bool narrow = is_narrow(computation.compute);
  // What operands of any precision are added up in has fp32 at least.
  const double sums = narrow ? numeric::row_of(ComputeFormat::fp32).operand_error : operand;
  const double roundings = roundings_of_write(computation.compute);
  const double units =
      both(condition.cancellation * (narrow ? 2 : computation.units.rms), condition.rounding * roundings);
  // How much cancels may be infinite: nobody knows it.
  const double excess = computation.excess > 0 ? sums * condition.cancellation * computation.excess : 0;
  return both(operand * units, solving_error(computation.compute) * condition.solving * roundings) + excess +
         numeric::format_of(computation.storage).unit_roundoff();
}

/// The same in steps of the element type, of the magnitude: where all terms of an output are small, what was
/// lost in the state before it is not; and where the state was large before, even less. A solve adds up its
/// terms one by one: twice the units, as everywhere in the chunk form.
double steps_lost(const Computation& computation, const numeric::Format& storage) {
  const numeric::ComputeRow& row = numeric::row_of(computation.compute);
  const Condition& condition = computation.condition;
  const double usual = computation.smallness * condition.magnitude * computation.units.largest;
  const double solving =
      2 * condition.solving_behind * solving_error(computation.compute) / row.operand_error;
  const double behind = roundings_of_write(computation.compute) * both(condition.rounding_behind, solving);
  return std::ldexp(std::max(usual, behind), storage.precision - row.precision);
}

}  // namespace

bool is_set_by_hand(const Limit& limit) {
  constexpr std::string_view ours[] = {"derived", "stable", "storage", "replay", "invariant", "exact"};
  return std::ranges::find(ours, limit.source) == std::end(ours);
}

const Limit* find_limit(const std::vector<Limit>& limits, std::string_view metric) {
  const auto found = std::ranges::find(limits, metric, &Limit::metric);
  return found == limits.end() ? nullptr : &*found;
}

double smallness_of_sums(std::size_t N, std::size_t K) {
  return numeric::power(static_cast<double>(std::max<std::size_t>(1, N)), 1 / static_cast<double>(K));
}

double ratio_of_sizes(std::span<const double> values, std::span<const double> others) {
  constexpr std::size_t at_once = 1024;
  numeric::ProductSum value, other;
  for (std::size_t begin = 0; begin < values.size(); begin += at_once) {
    const std::size_t end = std::min(begin + at_once, values.size());
    double *const of_value = value.plain(), *const of_other = other.plain();
    if (of_value != nullptr && of_other != nullptr && are_squarable(&values[begin], end - begin) &&
        are_squarable(&others[begin], end - begin)) {
      double a = *of_value, b = *of_other;  // neighbours may share a line of the cache
      for (std::size_t i = begin; i < end; ++i) a += values[i] * values[i], b += others[i] * others[i];
      *of_value = a, *of_other = b;
      continue;
    }
    for (std::size_t i = begin; i < end; ++i) {
      if (std::isnan(values[i]) || !std::isfinite(others[i])) continue;
      value.add_square(values[i]);
      other.add_square(others[i]);
    }
  }
  return relative_size(value, other);
}

std::vector<Limit> derived_limits(const Computation& got, const std::optional<Computation>& expected) {
  const numeric::Format& storage = numeric::format_of(got.storage);
  double rms = rms_lost(got, got.condition);
  double steps = 1 + steps_lost(got, storage);
  if (expected) {
    // Where terms cancel their errors are taken as independent, and so are those of two answers.
    rms = std::max(both(rms, rms_lost(*expected, expected->condition)),
                   rms_lost(got, {}) + rms_lost(*expected, {}));
    steps += steps_lost(*expected, storage) +
             std::ldexp(1.0, storage.precision - numeric::format_of(expected->storage).precision);
  }
  return {{"nonfinite", 0, "derived"}, {"rms_ratio", rms, "derived"}, {"scaled_ulp", steps, "derived"}};
}

std::vector<Limit> replay_limits() { return {{"nonfinite", 0, "replay"}, {"differing_bits", 0, "replay"}}; }

std::optional<LimitRequest> limit_request(std::string_view metric, std::string_view value) {
  LimitRequest request{std::string(metric), 0, value == "none", value == "exact"};
  if (request.none || request.exact) return request;
  const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), request.value);
  if (failure != std::errc{} || end != value.data() + value.size() || !(request.value >= 0) ||
      !std::isfinite(request.value))
    return std::nullopt;
  return request;
}

LimitRequest parse_limit(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0)
    throw Error(ErrorKind::usage, fmt::format("--limit {}: wanted METRIC=VALUE", text), {},
                "e.g. --limit scaled_ulp=16");
  const std::string_view metric = text.substr(0, equals), value = text.substr(equals + 1);
  if (find_metric(metric) == nullptr)
    throw Error(ErrorKind::usage, fmt::format("--limit {}: no metric '{}'", text, metric), {},
                suggest(metric, metric_names()));
  const std::optional<LimitRequest> request = limit_request(metric, value);
  if (!request)
    throw Error(ErrorKind::usage, fmt::format("--limit {}: '{}' is not a number >= 0", text, value), {},
                "a number, exact or none");
  return *request;
}

void refuse_limits_finer_than_storage(const std::vector<LimitRequest>& requests, double atol, double rtol,
                                      numeric::DType storage) {
  const numeric::Format& format = numeric::format_of(storage);
  const double half_step = format.unit_roundoff();
  const auto refuse = [&](const std::string& what, double least) {
    throw Error(ErrorKind::usage,
                fmt::format("{} is finer than {} can hold: a correctly rounded {} answer needs at least {:g}",
                            what, format.name, format.name, least),
                {}, "compare bit for bit with --limit max_ulp=0");
  };
  for (const LimitRequest& request : requests) {
    if (request.none || request.exact) continue;
    double least = 0;
    // In steps from the rounded oracle a correctly rounded answer is 0 off.
    if (request.metric == "ulp_error" || request.metric == "scaled_ulp") least = 0.5;
    if (request.metric == "rms_ratio") least = half_step / 4;
    if (request.metric == "max_rel") least = half_step;
    if (request.value < least) refuse(fmt::format("--limit {}={:g}", request.metric, request.value), least);
  }
  if ((atol > 0 || rtol > 0) && rtol < half_step && atol == 0)
    refuse(fmt::format("--rtol {:g} with --atol 0", rtol), half_step);
}

std::vector<Limit> overlaid(std::vector<Limit> limits, const std::vector<LimitLayer>& layers) {
  for (const LimitLayer& layer : layers)
    for (const LimitRequest& request : layer.requests) {
      std::erase_if(limits, [&](const Limit& limit) { return limit.metric == request.metric; });
      if (!request.none) limits.push_back({request.metric, request.value, layer.source});
    }
  return limits;
}

bool ask_for_bits(const std::vector<LimitLayer>& layers) {
  return std::ranges::any_of(overlaid({}, layers), [](const Limit& limit) {
    return limit.value == 0 && (limit.metric == "max_ulp" || limit.metric.starts_with("differing"));
  });
}

}  // namespace kda_check::judge
