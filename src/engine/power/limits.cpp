#include "engine/power/limits.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "kda/truth/places.hpp"
#include "numeric/ulp.hpp"

namespace kda_check::engine {

kda::OracleSink into(ExactTensor& exact, std::string_view tensor, const kda::Dimensions& d) {
  const kda::TakePart set = [&exact, name = std::string(tensor)](const kda::OraclePart& part) {
    if (part.tensor != name) return;
    exact.values.set(part.first, std::span<const double>(part.hi, part.count));
    for (std::size_t i = 0; i < part.count; ++i)
      exact.exponents[part.first + i] = static_cast<std::int16_t>(
          std::max(numeric::exponent_of(part.hi[i]), numeric::exponent_of(part.magnitude[i])));
  };
  return tensor == "o" ? kda::by_places(d, set, {}) : kda::by_places(d, {}, set);
}

/// Calls use(error, direction, truth, unit) for every element of a head, or for those that a fault changes.
template <class Use>
void PowerOfLimits::over(std::size_t head, const Fault* fault, const Use& use) const {
  if (fault != nullptr && !fault->has(head)) return;
  const HealthyHead healthy = answers_.head(head);
  const std::size_t first = fault != nullptr ? fault->first_column : 0,
                    last = fault != nullptr ? fault->last_column : layout_.width;
  const numeric::Format& format = numeric::format_of(answers_.storage());
  for (std::size_t r = 0; r < layout_.rows; ++r) {
    if (fault != nullptr && !fault->rows[r]) continue;
    for (std::size_t v = first; v < last; ++v) {
      const std::size_t i = r * judge::padded_width(layout_.width) + v, element = layout_.element(r, head, v);
      const double x = exact_.values[element], got = static_cast<double>(healthy.stored[i]);
      double direction = 0;
      if (fault != nullptr)
        direction = static_cast<double>(fault->direction.empty() ? healthy.exact[i] : fault->direction[i]);
      use(got - x, direction, x, numeric::unit_in_last_place(format, exact_.exponents[element]));
    }
  }
}

PowerOfLimits::PowerOfLimits(const PowerAnswers& answers, const ExactTensor& exact,
                             const std::vector<judge::Limit>& limits)
    : answers_(answers), exact_(exact), layout_(answers.layout()) {
  if (const judge::Limit* const rms = judge::find_limit(limits, "rms_ratio")) rms_limit_ = rms->value;
  if (const judge::Limit* const ulp = judge::find_limit(limits, "scaled_ulp")) ulp_limit_ = ulp->value;
  for (std::size_t head = 0; head < layout_.heads; ++head)
    over(head, nullptr, [&](double e, double, double x, double unit) {
      is_finite_ = is_finite_ && std::isfinite(e);
      errors_ += e * e, truth_ += x * x;
      scaled_ulp_ = std::max(scaled_ulp_, std::fabs(e) / unit);
    });
}

double PowerOfLimits::rms_ratio() const { return truth_ > 0 ? std::sqrt(errors_ / truth_) : 0; }

std::optional<double> PowerOfLimits::least(const Fault& fault, double times_ulp_limit) const {
  double along = 0, squares = 0, least = HUGE_VAL;
  for (std::size_t head = 0; head < layout_.heads; ++head)
    over(head, &fault, [&](double e, double d, double, double unit) {
      along += e * d, squares += d * d;
      const double towards = d > 0 ? e : -e;
      if (d != 0) least = std::min(least, (times_ulp_limit * ulp_limit_ * unit - towards) / std::fabs(d));
    });
  // errors + 2 share along + share^2 squares = limit^2 truth
  const double room = rms_limit_ * rms_limit_ * truth_ - errors_;
  const double root = std::sqrt(std::max(0.0, along * along + squares * room));
  if (squares > 0) least = std::min(least, (root - along) / squares);
  if (!std::isfinite(least)) return std::nullopt;
  return std::max(0.0, least);
}

}  // namespace kda_check::engine
