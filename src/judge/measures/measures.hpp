// What a comparison counts. Numbers and where they occur, no judgement.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "numeric/distance_bins.hpp"
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

  bool yields_to(double candidate, std::size_t element) const {
    return candidate > value || (candidate == value && element < point.element);
  }
  void take(double candidate, const Point& at) {
    if (yields_to(candidate, at.element)) {
      value = candidate;
      point = at;
    }
  }
  void merge(const Extreme& other) {
    if (other.point.element != no_element) take(other.value, other.point);
  }
};

/// Distribution of distances, in the bins of numeric/distance_bins.hpp.
class DistanceHistogram {
 public:
  void add(std::uint64_t distance, std::uint64_t count = 1) {
    bins_[numeric::distance_bin(distance)] += count;
  }
  void add_to_bin(std::size_t bin) { ++bins_[bin]; }
  bool operator==(const DistanceHistogram&) const = default;
  void merge(const DistanceHistogram& other) {
    for (std::size_t bin = 0; bin < bins_.size(); ++bin) bins_[bin] += other.bins_[bin];
  }
  /// The least distance that `share` of the elements do not exceed; the lower end of its bin.
  double percentile(double share) const;
  /// Counts of the distances 0, 1, 2..3, 4..7 and so on, up to the last that is not empty.
  std::vector<std::uint64_t> by_power_of_two() const;

 private:
  static double lower_end(std::size_t bin);
  std::array<std::uint64_t, numeric::distance_bins> bins_{};
};

/// One head of one sequence, a computation of its own: what happened in it to elements that have no error.
struct Strand {
  std::size_t undecided = 0;   ///< the oracle is not finite
  std::size_t overflowed = 0;  ///< it is, beyond the range that the answer is computed in
  std::size_t mismatched = 0;  ///< the class is not the expected one
  /// The first and the last token of either; of states 0.
  struct Tokens {
    std::size_t first = no_element, last = 0;
    void take(const Tokens& other) {
      first = std::min(first, other.first), last = std::max(last, other.last);
    }
  } lost = {}, mismatches = {};

  void add(const Strand& other) {
    undecided += other.undecided, overflowed += other.overflowed, mismatched += other.mismatched;
    lost.take(other.lost), mismatches.take(other.mismatches);
  }
  bool is_decided() const { return undecided + overflowed == 0; }
};

struct Measures {
  std::size_t elements = 0;
  std::size_t finite = 0;  ///< finite on both sides: what all maxima and sums are over
  /// [class of got][class of expected]; everything off the diagonal is a failure. Expected has the class of
  /// its value rounded to the element type.
  std::array<std::array<std::size_t, class_count>, class_count> classes{};
  std::size_t undecided = 0;   ///< elements where the oracle itself is not finite; they are in no other count
  std::size_t overflowed = 0;  ///< not finite, or to be infinite, as the truth is beyond that range
  /// By sequence and head; those of which there is anything to say.
  std::map<std::size_t, Strand> strands;
  std::size_t differing = 0;       ///< got is not expected rounded to the element type (+0 and -0 are equal)
  std::size_t differing_bits = 0;  ///< the same, +0 and -0 being two; NaNs of other bits where asked for
  std::size_t outside = 0;         ///< |got - expected| > atol + rtol |expected|
  bool has_magnitude = false, has_twins = false;
  bool got_all_zero = true, expected_all_zero = true;

  Extreme max_ulp;       ///< representable steps in the tensor's element type
  Extreme ulp_error;     ///< |got - exact| / ulp(exact)
  Extreme scaled_ulp;    ///< |got - exact| / ulp(magnitude); only with magnitudes
  Extreme max_abs;       ///< |got - expected|
  Extreme max_rel;       ///< |got - expected| / |expected|, of errors beyond half the smallest step
  Extreme worst_excess;  ///< |got - expected| - (atol + rtol |expected|), where positive

  double rms_ratio = 0;  ///< rms(got - expected) / rms(expected)
  double bias = 0;       ///< slope - 1 of got against expected through the origin
  /// Of windows and heads whose error is beyond half the smallest step, rms.
  double window_rms_ratio = 0;
  std::size_t window_batch = 0, window_token = no_element;  ///< first token of the worst window of 8
  double head_rms_ratio = 0;
  std::size_t worst_head = no_element;

  double expected_rms = 0;
  double smallest_step = 0;  ///< between numbers of the element type: what is correctly rounded errs by half
  double twins = 0;          ///< statistic over limit (judge/spread/twin_test.hpp); only with twins

  DistanceHistogram distances;
  std::vector<Point> worst;             ///< the worst points, worst first
  std::vector<Point> class_mismatches;  ///< the first elements whose classes differ, or whose NaNs do

  /// Half the smallest step over rms(expected): what rms_ratio and bias of a correctly rounded answer may be
  /// whatever its element type's precision. 0 where that is 0.
  double least_rms_ratio() const { return expected_rms == 0 ? 0 : smallest_step / expected_rms / 2; }
  std::size_t mismatched_classes() const;
  /// Those that the oracle decides: in strands where it is finite everywhere, within the range, and in others
  /// before it leaves that, backwards behind, by more than a chunk.
  std::size_t mismatched_where_decided(bool backward = false) const;
  std::size_t both_nan() const { return classes[3][3]; }
};

}  // namespace kda_check::judge
