// What a comparison counts. Numbers and where they occur, no judgement.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "numeric/double_double.hpp"

namespace kda_check::judge {

enum class ValueClass : unsigned char { finite, positive_infinity, negative_infinity, nan };
inline constexpr std::size_t class_count = 4;

inline constexpr std::size_t no_element = std::numeric_limits<std::size_t>::max();

/// One element, for listings.
struct Point {
  std::size_t element = no_element;
  double got = 0;
  numeric::DoubleDouble expected;
  double magnitude = 0;  ///< 0 without magnitudes
  double rank = 0;       ///< what lists are sorted by: scaled_ulp with a magnitude, else the ULP distance
};

/// The largest value seen of one quantity and the first element that has it.
struct Extreme {
  double value = 0;
  Point point;

  void take(double candidate, const Point& at) {
    if (candidate > value || (candidate == value && at.element < point.element)) {
      value = candidate;
      point = at;
    }
  }
  void merge(const Extreme& other) {
    if (other.point.element != no_element) take(other.value, other.point);
  }
};

/// Distribution of distances, in bins that are exact below 32 and 1/16 wide (relative) above.
class DistanceHistogram {
 public:
  void add(std::uint64_t distance, std::uint64_t count = 1) { bins_[bin_of(distance)] += count; }
  void merge(const DistanceHistogram& other) {
    for (std::size_t bin = 0; bin < bins_.size(); ++bin) bins_[bin] += other.bins_[bin];
  }
  /// The least distance that `share` of the elements do not exceed; the lower end of its bin.
  double percentile(double share) const;
  /// Counts of the distances 0, 1, 2..3, 4..7 and so on, up to the last that is not empty.
  std::vector<std::uint64_t> by_power_of_two() const;

 private:
  static constexpr std::size_t per_octave = 16;
  static std::size_t bin_of(std::uint64_t distance);
  static double lower_end(std::size_t bin);
  std::array<std::uint64_t, 32 + 60 * per_octave> bins_{};
};

struct Measures {
  std::size_t elements = 0;
  std::size_t finite = 0;  ///< finite on both sides: what all maxima and sums are over
  /// [class of got][class of expected]; everything off the diagonal is a failure. Expected has the class of
  /// its value rounded to the element type.
  std::array<std::array<std::size_t, class_count>, class_count> classes{};
  std::size_t undecided = 0;  ///< elements where the oracle itself is not finite; they are in no other count
  std::size_t differing = 0;  ///< got is not expected rounded to the element type (+0 and -0 are equal)
  std::size_t differing_bits = 0;  ///< the same, +0 and -0 being two; NaNs of other bits where asked for
  std::size_t outside = 0;         ///< |got - expected| > atol + rtol |expected|
  bool has_magnitude = false;
  bool got_all_zero = true, expected_all_zero = true;

  Extreme max_ulp;       ///< representable steps in the tensor's element type
  Extreme ulp_error;     ///< |got - exact| / ulp(exact)
  Extreme scaled_ulp;    ///< |got - exact| / ulp(magnitude); only with magnitudes
  Extreme max_abs;       ///< |got - expected|
  Extreme max_rel;       ///< |got - expected| / |expected|
  Extreme worst_excess;  ///< |got - expected| - (atol + rtol |expected|), where positive

  double rms_ratio = 0;  ///< rms(got - expected) / rms(expected)
  double bias = 0;       ///< slope - 1 of got against expected through the origin
  double window_rms_ratio = 0;
  std::size_t window_batch = 0, window_token = no_element;  ///< first token of the worst window of 8
  double head_rms_ratio = 0;
  std::size_t worst_head = no_element;

  DistanceHistogram distances;
  std::vector<Point> worst;             ///< the worst points, worst first
  std::vector<Point> class_mismatches;  ///< the first elements whose classes differ, or whose NaNs do

  std::size_t mismatched_classes() const;
  std::size_t both_nan() const { return classes[3][3]; }
};

}  // namespace kda_check::judge
