#include "judge/measures/metrics.hpp"

namespace kda_check::judge {

namespace {

template <Extreme Measures::*extreme>
double value_of(const Measures& m) {
  return (m.*extreme).value;
}
template <Extreme Measures::*extreme>
Point point_of(const Measures& m) {
  return (m.*extreme).point;
}
template <auto Measures::*number>
double number_of(const Measures& m) {
  return static_cast<double>(m.*number);
}
template <int permille>
double steps_at(const Measures& m) {
  return m.distances.percentile(permille / 1000.0);
}
double mismatched_classes(const Measures& m) { return static_cast<double>(m.mismatched_classes()); }
Point first_mismatch(const Measures& m) {
  return m.class_mismatches.empty() ? Point{} : m.class_mismatches.front();
}
Point nowhere(const Measures&) { return {}; }

constexpr bool kept = true, not_kept = false;

constexpr Metric list[] = {
    {"max_ulp", "representable steps from expected, rounded once to the element type", Needs::nothing, 2, 1,
     0, kept, value_of<&Measures::max_ulp>, point_of<&Measures::max_ulp>},
    {"ulp_error", "|got - exact| in units of exact's last place; correctly rounded is <= 0.5", Needs::nothing,
     2, 0.5, 0, not_kept, value_of<&Measures::ulp_error>, point_of<&Measures::ulp_error>},
    {"scaled_ulp", "|got - exact| in units of the last place of the magnitude: immune to cancellation",
     Needs::magnitude, 1.5, 0.5, 0, kept, value_of<&Measures::scaled_ulp>, point_of<&Measures::scaled_ulp>},
    {"max_abs", "largest |got - expected|", Needs::nothing, 1.5, 0, 0, not_kept, value_of<&Measures::max_abs>,
     point_of<&Measures::max_abs>},
    {"max_rel", "largest |got - expected| / |expected|", Needs::nothing, 2, 0, 1, not_kept,
     value_of<&Measures::max_rel>, point_of<&Measures::max_rel>},
    {"rms_ratio", "rms(got - expected) / rms(expected)", Needs::nothing, 1.25, 0, 0.25, kept,
     number_of<&Measures::rms_ratio>, nowhere},
    {"allclose", "elements with |got - expected| > atol + rtol |expected|", Needs::nothing, 1, 0, 0, not_kept,
     number_of<&Measures::outside>, point_of<&Measures::worst_excess>},
    {"nonfinite", "elements whose class (finite, +inf, -inf, NaN) is not the expected one", Needs::nothing, 1,
     0, 0, kept, mismatched_classes, first_mismatch},
    {"bias", "slope - 1 of got against expected: a systematic scale error", Needs::nothing, 2, 0, 0.25, kept,
     number_of<&Measures::bias>, nowhere},
    {"window_rms_ratio", "rms_ratio of the worst window of 8 tokens", Needs::nothing, 1.5, 0, 0.5, kept,
     number_of<&Measures::window_rms_ratio>, nowhere},
    {"head_rms_ratio", "rms_ratio of the worst head", Needs::nothing, 1.25, 0, 0.25, kept,
     number_of<&Measures::head_rms_ratio>, nowhere},
    {"differing", "elements that are not expected, rounded to the element type", Needs::nothing, 1.25, 1, 0,
     not_kept, number_of<&Measures::differing>, point_of<&Measures::max_ulp>},
    {"differing_bits", "the same, +0 and -0 being two", Needs::nothing, 1.25, 1, 0, not_kept,
     number_of<&Measures::differing_bits>, point_of<&Measures::max_ulp>},
    {"ulp_p50", "median of the steps from expected", Needs::nothing, 1.25, 1, 0, not_kept, steps_at<500>,
     nowhere},
    {"ulp_p99", "99th percentile of the steps from expected", Needs::nothing, 1.25, 1, 0, not_kept,
     steps_at<990>, nowhere},
    {"ulp_p999", "99.9th percentile of the steps from expected", Needs::nothing, 1.5, 1, 0, not_kept,
     steps_at<999>, nowhere},
    {"twins", "error beside those of emulated kernels, over what they allow: 1 is as far as any goes",
     Needs::twins, 1.5, 0.5, 0, not_kept, number_of<&Measures::twins>, nowhere},
};

}  // namespace

std::span<const Metric> metrics() { return list; }

std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const Metric& metric : list) names.emplace_back(metric.name);
  return names;
}

const Metric* find_metric(std::string_view name) {
  for (const Metric& metric : list)
    if (metric.name == name) return &metric;
  return nullptr;
}

}  // namespace kda_check::judge
