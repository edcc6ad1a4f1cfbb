#include "report/sparkline.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kda_check::report {

namespace {

constexpr int levels = 8;
constexpr const char* blocks[levels] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr const char* digits[levels] = {"1", "2", "3", "4", "5", "6", "7", "8"};

std::vector<double> bucketed(std::span<const double> values, std::size_t most) {
  if (values.size() <= most) return {values.begin(), values.end()};
  std::vector<double> buckets(most, 0.0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    double& bucket = buckets[i * most / values.size()];
    if (!std::isnan(bucket) && !(values[i] <= bucket)) bucket = values[i];
  }
  return buckets;
}

}  // namespace

std::string sparkline(std::span<const double> values, bool unicode, std::size_t most) {
  const std::vector<double> buckets = bucketed(values, most);
  double smallest = HUGE_VAL, largest = 0;
  for (const double value : buckets)
    if (std::isfinite(value) && value > 0)
      smallest = std::min(smallest, value), largest = std::max(largest, value);
  const double span = std::max(1.0, std::log10(largest) - std::log10(smallest));
  std::string line;
  for (const double value : buckets) {
    if (!std::isfinite(value)) {
      line += '!';
    } else if (value <= 0) {
      line += '.';
    } else {
      const double height = (std::log10(value) - std::log10(smallest)) / span;  // 0 to 1
      const int level = std::min(levels - 1, static_cast<int>(height * levels));
      line += (unicode ? blocks : digits)[level];
    }
  }
  return line;
}

}  // namespace kda_check::report
