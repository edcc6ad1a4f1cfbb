#include "judge/measures/metrics.hpp"

namespace kda_check::judge {

namespace {

Point nowhere(const Measures&) { return {}; }
Point first_mismatch(const Measures& m) {
  return m.class_mismatches.empty() ? Point{} : m.class_mismatches.front();
}

constexpr Metric list[] = {
    {"max_ulp", "representable steps from expected, rounded once to the element type", Needs::nothing,
     [](const Measures& m) { return m.max_ulp.value; }, [](const Measures& m) { return m.max_ulp.point; }},
    {"ulp_error", "|got - exact| in units of exact's last place; correctly rounded is <= 0.5", Needs::nothing,
     [](const Measures& m) { return m.ulp_error.value; },
     [](const Measures& m) { return m.ulp_error.point; }},
    {"scaled_ulp", "|got - exact| in units of the last place of the magnitude: immune to cancellation",
     Needs::magnitude, [](const Measures& m) { return m.scaled_ulp.value; },
     [](const Measures& m) { return m.scaled_ulp.point; }},
    {"max_abs", "largest |got - expected|", Needs::nothing, [](const Measures& m) { return m.max_abs.value; },
     [](const Measures& m) { return m.max_abs.point; }},
    {"max_rel", "largest |got - expected| / |expected|", Needs::nothing,
     [](const Measures& m) { return m.max_rel.value; }, [](const Measures& m) { return m.max_rel.point; }},
    {"rms_ratio", "rms(got - expected) / rms(expected)", Needs::nothing,
     [](const Measures& m) { return m.rms_ratio; }, nowhere},
    {"allclose", "elements with |got - expected| > atol + rtol |expected|", Needs::nothing,
     [](const Measures& m) { return static_cast<double>(m.outside); },
     [](const Measures& m) { return m.worst_excess.point; }},
    {"nonfinite", "elements whose class (finite, +inf, -inf, NaN) is not the expected one", Needs::nothing,
     [](const Measures& m) { return static_cast<double>(m.mismatched_classes()); }, first_mismatch},
    {"bias", "slope - 1 of got against expected: a systematic scale error", Needs::nothing,
     [](const Measures& m) { return m.bias; }, nowhere},
    {"window_rms_ratio", "rms_ratio of the worst window of 8 tokens", Needs::nothing,
     [](const Measures& m) { return m.window_rms_ratio; }, nowhere},
    {"head_rms_ratio", "rms_ratio of the worst head", Needs::nothing,
     [](const Measures& m) { return m.head_rms_ratio; }, nowhere},
    {"differing", "elements that are not expected, rounded to the element type", Needs::nothing,
     [](const Measures& m) { return static_cast<double>(m.differing); },
     [](const Measures& m) { return m.max_ulp.point; }},
    {"differing_bits", "the same, +0 and -0 being two", Needs::nothing,
     [](const Measures& m) { return static_cast<double>(m.differing_bits); },
     [](const Measures& m) { return m.max_ulp.point; }},
    {"ulp_p50", "median of the steps from expected", Needs::nothing,
     [](const Measures& m) { return m.distances.percentile(0.5); }, nowhere},
    {"ulp_p99", "99th percentile of the steps from expected", Needs::nothing,
     [](const Measures& m) { return m.distances.percentile(0.99); }, nowhere},
    {"ulp_p999", "99.9th percentile of the steps from expected", Needs::nothing,
     [](const Measures& m) { return m.distances.percentile(0.999); }, nowhere},
    {"twins", "error beside those of emulated kernels, over what they allow: 1 is as far as any goes",
     Needs::twins, [](const Measures& m) { return m.twins; }, nowhere},
};

}  // namespace

std::span<const Metric> metrics() { return list; }

const Metric* find_metric(std::string_view name) {
  for (const Metric& metric : list)
    if (metric.name == name) return &metric;
  return nullptr;
}

}  // namespace kda_check::judge
