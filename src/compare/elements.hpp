// The loops over elements of a comparison. Included by comparison.cpp only.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

#include "compare/cells.hpp"
#include "compare/comparison.hpp"
#include "numeric/rounding.hpp"
#include "numeric/ulp.hpp"

namespace kda_check::compare {

/// What was expected, as double-doubles with or without magnitudes.
struct WideValues {
  ExpectedValues values;

  numeric::DoubleDouble exact(std::size_t i) const { return {values.hi[i], values.lo[i]}; }
  double magnitude(std::size_t i) const { return values.magnitude[i]; }
  template <class Storage>
  Storage rounded(std::size_t i) const {
    return numeric::round_to<Storage>(exact(i));
  }
};

/// What was expected, as the elements of another tensor.
template <class Element>
struct StoredValues {
  const Element* elements;

  numeric::DoubleDouble exact(std::size_t i) const { return {numeric::widen(elements[i]), 0}; }
  double magnitude(std::size_t) const { return 0; }
  template <class Storage>
  Storage rounded(std::size_t i) const {
    if constexpr (std::is_same_v<Storage, Element>) {
      return elements[i];
    } else {
      return numeric::round_to<Storage>(exact(i));
    }
  }
};

/// Neighbours of one batch row, token and head.
struct Run {
  std::size_t begin, count;
  std::size_t lane;  ///< of the first, from the beginning of the token and head
};

class ElementCounter {
 public:
  ElementCounter(const ComparisonOptions& options, bool has_magnitude, Measures& measures)
      : options_(options), has_magnitude_(has_magnitude), m_(measures) {}

  /// One element after the other; `got` is the first of the run.
  template <class Storage, class Expected>
  void count(const Run& run, const Storage* got, const Expected& expected, Cell& cell, TokenErrors* token) {
    for (std::size_t i = 0; i < run.count; ++i) {
      const std::size_t at = run.begin + i;
      const numeric::DoubleDouble exact = expected.exact(i);
      if (options_.against_oracle && !std::isfinite(exact.hi)) {
        ++m_.undecided;
        continue;
      }
      const double value = numeric::widen(got[i]);
      const Storage rounded = expected.template rounded<Storage>(i);
      const double nearest = numeric::widen(rounded);
      const ValueClass got_class = class_of(value), expected_class = class_of(nearest);
      ++m_.classes[static_cast<std::size_t>(got_class)][static_cast<std::size_t>(expected_class)];
      m_.got_all_zero = m_.got_all_zero && value == 0;
      m_.expected_all_zero = m_.expected_all_zero && exact.hi == 0;
      if (got_class != ValueClass::finite || expected_class != ValueClass::finite) {
        if (got_class != expected_class) mismatch({at, value, exact, 0, 0}, run.lane + i, token);
        continue;
      }
      ++m_.finite;
      const numeric::DoubleDouble apart = numeric::two_sum(value, -exact.hi);
      const double signed_difference = apart.hi + (apart.lo - exact.lo),
                   difference = std::fabs(signed_difference), size = std::fabs(exact.hi);
      cell.difference2 += difference * difference;
      cell.expected2 += size * size;
      cell.product += signed_difference * exact.hi;
      const std::uint64_t distance = numeric::ulp_distance(got[i], rounded);
      m_.distances.add(distance);
      if (distance != 0) ++m_.differing;
      if (distance != 0 || std::signbit(value) != std::signbit(nearest)) ++m_.differing_bits;
      double rank = 0;
      if (difference != 0) {
        Point point{at, value, exact, 0, static_cast<double>(distance)};
        if (has_magnitude_) point.magnitude = expected.magnitude(i);
        rank = differing<Storage>(point, difference, size);
      }
      if (token != nullptr) token->take(difference, size, rank, run.lane + i);
    }
  }

  /// Counts elements that are finite and equal their expected ones to the bit, but for the sums.
  template <class Storage>
  void count_equal(const Storage* elements, std::size_t count) {
    m_.classes[0][0] += count;
    m_.finite += count;
    m_.distances.add(0, count);
    if (!m_.got_all_zero && !m_.expected_all_zero) return;
    for (std::size_t i = 0; i < count; ++i)
      if (numeric::widen(elements[i]) != 0) {
        m_.got_all_zero = m_.expected_all_zero = false;
        return;
      }
  }

 private:
  static ValueClass class_of(double x) {
    if (std::isfinite(x)) return ValueClass::finite;
    if (std::isnan(x)) return ValueClass::nan;
    return x > 0 ? ValueClass::positive_infinity : ValueClass::negative_infinity;
  }

  /// numeric::unit_in_last_place, without a call for normal results.
  static double unit(const numeric::Format& format, int exponent) {
    const int power = std::max(exponent, format.min_exponent) - format.precision + 1;
    if (power < -1022) return std::ldexp(1.0, power);
    return std::bit_cast<double>(static_cast<std::uint64_t>(power + 1023) << 52);
  }

  void mismatch(const Point& point, std::size_t lane, TokenErrors* token) {
    constexpr std::size_t listed = 8;
    ++m_.differing, ++m_.differing_bits;
    if (m_.class_mismatches.size() < listed) m_.class_mismatches.push_back(point);
    if (token != nullptr) token->take(HUGE_VAL, 0, HUGE_VAL, lane);
  }

  /// The maxima and lists; returns the distance in units of the magnitude, or 0 without.
  template <class Storage>
  double differing(Point& point, double difference, double size) {
    constexpr const numeric::Format& format = numeric::format_for<Storage>;
    const double distance = point.rank;
    const int exponent = numeric::exponent_of(point.expected);
    if (has_magnitude_) {
      point.rank = difference / unit(format, std::max(exponent, numeric::exponent_of(point.magnitude)));
      m_.scaled_ulp.take(point.rank, point);
    }
    m_.max_ulp.take(distance, point);
    m_.max_abs.take(difference, point);
    // A division costs more than all the rest: most are spared by a product that is surely too small.
    constexpr double surely = 1 - 0x1p-20;
    if (!(difference < m_.max_rel.value * surely * size)) m_.max_rel.take(difference / size, point);
    const double last_place = unit(format, exponent);
    if (!(difference < m_.ulp_error.value * surely * last_place))
      m_.ulp_error.take(difference / last_place, point);
    const double excess = difference - (options_.atol + options_.rtol * size);
    if (!(excess <= 0)) {
      ++m_.outside;
      m_.worst_excess.take(excess, point);
    }
    keep_worst(m_.worst, point, options_.worst);
    return has_magnitude_ ? point.rank : 0;
  }

  static void keep_worst(std::vector<Point>& worst, const Point& point, std::size_t most) {
    if (worst.size() == most && (worst.empty() || !before(point, worst.back()))) return;
    worst.insert(std::upper_bound(worst.begin(), worst.end(), point, before), point);
    if (worst.size() > most) worst.pop_back();
  }

 public:
  /// The order of the list of worst points.
  static bool before(const Point& a, const Point& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.element < b.element;
  }

 private:
  const ComparisonOptions& options_;
  const bool has_magnitude_;
  Measures& m_;
};

/// Whether no element is infinite or NaN.
template <class Storage>
bool all_finite(const Storage* elements, std::size_t count) {
  using Bits = numeric::BitsOf<Storage>;
  constexpr const numeric::Format& format = numeric::format_for<Storage>;
  constexpr auto exponent = static_cast<Bits>(
      ((std::uint64_t{1} << (format.bytes * 8 - static_cast<std::size_t>(format.precision))) - 1)
      << (format.precision - 1));
  constexpr auto lowest = static_cast<Bits>(std::uint64_t{1} << (format.precision - 1));
  Bits carried = 0;  // into the place of the sign, by an exponent of ones
  for (std::size_t i = 0; i < count; ++i)
    carried = static_cast<Bits>(carried | ((std::bit_cast<Bits>(elements[i]) & exponent) + lowest));
  return static_cast<Bits>(carried >> (sizeof(Bits) * 8 - 1)) == 0;
}

/// Adds the squares of `count` elements to the sums of one cell; with `heads` cells, the runs of as many
/// heads lie one after the other. Each sum is in the order of its elements: several at once hide the time
/// that an addition waits for the one before.
template <std::size_t heads, class Storage>
void add_squares(const Storage* elements, std::size_t count, Cell* cells) {
  std::array<double, heads> sums;
  for (std::size_t head = 0; head < heads; ++head) sums[head] = cells[head].expected2;
  constexpr std::size_t together = 64;
  double squares[heads][together];
  for (std::size_t begin = 0; begin < count; begin += together) {
    const std::size_t length = std::min(together, count - begin);
    for (std::size_t head = 0; head < heads; ++head)
      for (std::size_t i = 0; i < length; ++i) {
        const double value = numeric::widen(elements[head * count + begin + i]);
        squares[head][i] = value * value;
      }
    for (std::size_t i = 0; i < length; ++i)
      for (std::size_t head = 0; head < heads; ++head) sums[head] += squares[head][i];
  }
  for (std::size_t head = 0; head < heads; ++head) cells[head].expected2 = sums[head];
}

}  // namespace kda_check::compare
