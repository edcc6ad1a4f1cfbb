// The loops over elements of a comparison. Included by comparison.cpp only.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "judge/measures/comparison.hpp"
#include "judge/measures/grid.hpp"
#include "judge/measures/sides.hpp"
#include "numeric/ulp.hpp"
#include "numeric/within.hpp"

namespace kda_check::judge {

/// Neighbours of one batch row, token and head.
struct Run {
  std::size_t begin, count;
  std::size_t lane;  ///< of the first, from the beginning of the token and head
};

class ElementCounter {
 public:
  static constexpr std::size_t listed_mismatches = 8;

  ElementCounter(const ComparisonOptions& options, const TensorAxes& axes, bool has_magnitude,
                 Measures& measures)
      : options_(options), axes_(axes), has_magnitude_(has_magnitude), m_(measures) {}

  /// `got` is the first of the run.
  template <class Storage, class Expected>
  void count(const Run& run, const Storage* got, const Expected& expected, Cell& cell, TokenErrors* token) {
    constexpr double most = std::min(numeric::ProductSum::most_root, numeric::largest_finite<Storage>);
    if (cell.is_plain() && sizes_within(got, run.count, most) && expected.are_within(run.count, most)) {
      count_ordinary(run, got, expected, cell, token);
      return;
    }
    count_any(run, got, expected, cell, token);
  }

  /// The same without the fast form, one element after the other: the definition of it.
  template <class Storage, class Expected>
  void count_any(const Run& run, const Storage* got, const Expected& expected, Cell& cell,
                 TokenErrors* token) {
    for (std::size_t i = 0; i < run.count; ++i) {
      if (options_.against_oracle && !std::isfinite(expected.exact(i).hi)) {
        ++odd_.undecided;
        continue;
      }
      const Element<Storage> e = element_of(run, i, got, expected);
      const ValueClass got_class = class_of(e.value), expected_class = class_of(e.nearest);
      ++m_.classes[static_cast<std::size_t>(got_class)][static_cast<std::size_t>(expected_class)];
      m_.got_all_zero = m_.got_all_zero && e.value == 0;
      m_.expected_all_zero = m_.expected_all_zero && e.exact.hi == 0;
      if (got_class != ValueClass::finite || expected_class != ValueClass::finite) {
        if (std::fabs(e.exact.hi) > options_.largest) ++odd_.overflowed;
        if (got_class != expected_class)
          other_class(e, expected, i, cell, token);
        else if (options_.nan_bits && !same_bits(e.got, e.rounded))
          mismatch({e.at, e.value, e.exact, 0, 0}, e.lane, token);
        continue;
      }
      count_in(cell, e, difference_of(e.value, e.exact), expected, i, token);
    }
    if (odd_.undecided + odd_.overflowed + odd_.mismatched > 0) note_strand(run);
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
  __attribute__((noinline)) void note_strand(const Run& run) {
    const std::size_t token = axes_.token(run.begin);
    if (!odd_.is_decided()) odd_.lost = {token, token};
    if (odd_.mismatched > 0) odd_.mismatches = {token, token};
    m_.strands[axes_.strand(run.begin, options_.cu_seqlens)].add(odd_);
    m_.undecided += odd_.undecided, m_.overflowed += odd_.overflowed;
    odd_ = {};
  }

  /// What is known of one element when it is counted.
  template <class Storage>
  struct Element {
    std::size_t at, lane;
    Storage got, rounded;
    double value, nearest;  ///< of those
    numeric::DoubleDouble exact;
  };
  template <class Storage, class Expected>
  static KDA_CHECK_INLINE Element<Storage> element_of(const Run& run, std::size_t i, const Storage* got,
                                                      const Expected& expected) {
    const Storage rounded = expected.template rounded<Storage>(i);
    return {run.begin + i,           run.lane + i,     got[i], rounded, numeric::widen(got[i]),
            numeric::widen(rounded), expected.exact(i)};
  }

  /// A run of numbers whose expected ones are numbers of the element type too, no square being beyond the
  /// range of fp64. What count_in does of one element after the other a kernel does of many, but for the
  /// largest errors: of the elements that may have them these are looked at one by one.
  template <class Storage, class Expected>
  void count_ordinary(const Run& run, const Storage* got, const Expected& expected, Cell& cell,
                      TokenErrors* token) {
    kda::ElementBlock block;
    block.atol = options_.atol, block.rtol = options_.rtol;
    block.difference2 = *cell.difference2.plain(), block.expected2 = *cell.expected2.plain();
    block.product = *cell.product.plain();
    for (std::size_t begin = 0; begin < run.count; begin += block.count) {
      ExpectedRoom room;
      block.count = std::min(kda::elements_at_once, run.count - begin);
      block.got = got + begin;
      const ExpectedValues some = expected.some(begin, block.count, room);
      block.hi = some.hi, block.lo = some.lo, block.magnitude = has_magnitude_ ? some.magnitude : nullptr;
      block.largest = largest_before(run.begin + begin);
      kda::kernel_table().elements.errors(numeric::StorageTraits<Storage>::dtype, block);
      m_.differing += block.differing, m_.differing_bits += block.differing_bits;
      m_.outside += block.outside;
      m_.got_all_zero &= block.got_zero, m_.expected_all_zero &= block.expected_zero;
      for (std::size_t i = 0; i < block.count; ++i) m_.distances.add_to_bin(block.bin[i]);
      for (std::size_t i = 0; block.has_larger && i < block.count; ++i)
        if (block.may_be_larger[i] != 0)
          consider<Storage>(element_of(run, begin + i, got, expected), block.difference[i], expected,
                            begin + i);
      for (std::size_t i = 0; token != nullptr && i < block.count; ++i)
        token->take(block.difference[i], block.hi[i], block.rank[i], run.lane + begin + i);
    }
    *cell.difference2.plain() = block.difference2, *cell.expected2.plain() = block.expected2;
    *cell.product.plain() = block.product;
    cell.elements += run.count;
    m_.finite += run.count, m_.classes[0][0] += run.count;
  }

  /// What errors of elements from `first` on have to be above.
  kda::LargestErrors largest_before(std::size_t first) const {
    const auto above = [&](double value, std::size_t element) {
      if (element < first) return value;  // which stays where another is the same
      return value > 0 ? std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) - 1) : -1;
    };
    const auto above_one = [&](const Extreme& extreme) {
      return above(extreme.value, extreme.point.element);
    };
    const double listed = options_.worst == 0 ? HUGE_VAL
                          : m_.worst.size() < options_.worst
                              ? -1
                              : above(m_.worst.back().rank, m_.worst.back().element);
    return {std::min(above_one(m_.max_ulp), has_magnitude_ ? HUGE_VAL : listed),
            above_one(m_.max_abs),
            above_one(m_.ulp_error),
            has_magnitude_ ? std::min(above_one(m_.scaled_ulp), listed) : HUGE_VAL,
            std::max(above_one(m_.worst_excess), 0.0),
            m_.max_rel.value * surely};
  }

  /// One element, number i of its run, both sides of which are numbers.
  template <class Storage, class Expected>
  void count_in(Cell& cell, const Element<Storage>& e, double difference, const Expected& expected,
                std::size_t i, TokenErrors* token) {
    ++m_.finite, ++cell.elements;
    cell.add(difference, e.exact.hi);
    const std::uint64_t distance = numeric::ulp_distance(e.got, e.rounded);
    m_.distances.add(distance);
    m_.differing += distance != 0;
    m_.differing_bits += distance != 0 || std::signbit(e.value) != std::signbit(e.nearest);
    double rank = 0;
    if (difference != 0) {
      const Errors errors = consider<Storage>(e, difference, expected, i);
      m_.outside += errors.beyond != -1;
      rank = errors.rank;
    }
    if (token != nullptr) token->take(difference, e.exact.hi, rank, e.lane);
  }

  /// One whose class is not the expected one; at the overflow threshold infinity stands for a number.
  template <class Storage, class Expected>
  __attribute__((noinline)) void other_class(const Element<Storage>& e, const Expected& expected,
                                             std::size_t i, Cell& cell, TokenErrors* token) {
    if (within_a_step_of_overflow<Storage>(e.value, e.nearest, e.exact.hi)) {
      --m_.classes[static_cast<std::size_t>(class_of(e.value))]
                  [static_cast<std::size_t>(class_of(e.nearest))];
      ++m_.classes[0][0];
      count_in(cell, e, difference_at_overflow<Storage>(e.value, e.exact), expected, i, token);
    } else {
      ++odd_.mismatched;
      mismatch({e.at, e.value, e.exact, 0, 0}, e.lane, token);
    }
  }

  template <class Storage>
  static bool same_bits(Storage a, Storage b) {
    return std::bit_cast<numeric::BitsOf<Storage>>(a) == std::bit_cast<numeric::BitsOf<Storage>>(b);
  }

  static KDA_CHECK_INLINE ValueClass class_of(double x) {
    if (std::isfinite(x)) return ValueClass::finite;
    if (std::isnan(x)) return ValueClass::nan;
    return x > 0 ? ValueClass::positive_infinity : ValueClass::negative_infinity;
  }

  /// got - exact, rounded last; infinite where it is beyond the range.
  static double difference_of(double got, numeric::DoubleDouble exact) {
    const numeric::DoubleDouble apart = numeric::two_sum(got, -exact.hi);
    if (!std::isfinite(apart.hi)) return apart.hi;
    return apart.hi + (apart.lo - exact.lo);
  }

  /// Whether one of got and expected, rounded, is the largest finite number and the other the infinity after
  /// it, the exact value being no farther off than the number in whose place infinity is: that is one step,
  /// not another class. Of an infinity that was recorded nobody knows what it stands for.
  template <class Storage>
  static bool within_a_step_of_overflow(double got, double nearest, double exact) {
    const double a = std::fabs(got), b = std::fabs(nearest);
    return std::signbit(got) == std::signbit(nearest) && std::min(a, b) == numeric::largest_finite<Storage> &&
           std::max(a, b) == HUGE_VAL &&
           std::fabs(exact) - numeric::largest_finite<Storage> <= numeric::step_at_overflow<Storage>;
  }

  /// got - exact there, infinity standing for the number in its place.
  template <class Storage>
  static double difference_at_overflow(double got, numeric::DoubleDouble exact) {
    if (std::isfinite(got)) return difference_of(got, exact);
    return difference_of(std::copysign(numeric::largest_finite<Storage>, got), exact) +
           std::copysign(numeric::step_at_overflow<Storage>, got);
  }

  /// x over numeric::unit_in_last_place, a power of two: without a call or a division for normal ones.
  static KDA_CHECK_INLINE double in_units(double x, const numeric::Format& format, int exponent) {
    const int power = std::max(exponent, format.min_exponent) - format.precision + 1;
    if (power < -1022) return x / std::ldexp(1.0, power);
    return x * std::bit_cast<double>(static_cast<std::uint64_t>(1023 - power) << 52);
  }

  void mismatch(const Point& point, std::size_t lane, TokenErrors* token) {
    ++m_.differing, ++m_.differing_bits;
    std::vector<Point>& first = m_.class_mismatches;  // elements may come head by head
    if (first.size() < listed_mismatches || point.element < first.back().element) {
      first.insert(std::ranges::upper_bound(first, point.element, {}, &Point::element), point);
      if (first.size() > listed_mismatches) first.pop_back();
    }
    if (token != nullptr) token->take(HUGE_VAL, 0, HUGE_VAL, lane);
  }

  struct Errors {
    double distance, difference, ulps, beyond;  ///< -1: none
    double rank;                                ///< in units of the magnitude, or 0 without
  };
  /// One that differs: the maxima and lists. Most elements are in none.
  template <class Storage, class Expected>
  KDA_CHECK_INLINE Errors consider(const Element<Storage>& e, double signed_difference,
                                   const Expected& expected, std::size_t i) {
    constexpr const numeric::Format& format = numeric::format_for<Storage>;
    constexpr double smallest_step = format.smallest_step();
    const double difference = std::fabs(signed_difference), size = std::fabs(e.exact.hi);
    const auto distance = static_cast<double>(numeric::ulp_distance(e.got, e.rounded));
    const int exponent = numeric::exponent_of(e.exact);
    const double excess = excess_of(difference, size, smallest_step);
    Errors errors{distance, difference, in_units(difference, format, exponent), excess <= 0 ? -1 : excess, 0};
    Point point{e.at, e.value, e.exact, 0, distance};
    if (has_magnitude_) {
      point.magnitude = expected.magnitude(i);
      point.rank = errors.rank =
          in_units(difference, format, std::max(exponent, numeric::exponent_of(point.magnitude)));
    }
    const bool may_be_max_rel =
        !(difference < m_.max_rel.value * surely * size) && 2 * difference > smallest_step;
    if (may_be_max_rel || m_.max_ulp.yields_to(distance, e.at) || m_.max_abs.yields_to(difference, e.at) ||
        m_.ulp_error.yields_to(errors.ulps, e.at) || m_.worst_excess.yields_to(errors.beyond, e.at) ||
        is_among_worst(m_.worst, point, options_.worst) ||
        (has_magnitude_ && m_.scaled_ulp.yields_to(point.rank, e.at)))
      note(point, errors, may_be_max_rel ? difference / size : -1);
    return errors;
  }
  /// A division costs more than all the rest: most are spared by a product that is surely too small.
  static constexpr double surely = 1 - 0x1p-20;

  __attribute__((noinline)) void note(const Point& point, const Errors& errors, double relative) {
    if (has_magnitude_) m_.scaled_ulp.take(point.rank, point);
    m_.max_ulp.take(errors.distance, point);
    m_.max_abs.take(errors.difference, point);
    m_.max_rel.take(relative, point);
    m_.ulp_error.take(errors.ulps, point);
    m_.worst_excess.take(errors.beyond, point);
    keep_worst(m_.worst, point, options_.worst);
  }

  double excess_of(double difference, double size, double smallest_step) const {
    // A tolerance allows half a step at least; without one every difference counts.
    if (2 * difference <= smallest_step && (options_.atol > 0 || options_.rtol > 0)) return 0;
    // rtol * size may underflow: all of it scaled up, and an excess of a share of the smallest number is one.
    constexpr double small = 0x1p-900, up = 0x1p500;
    if (difference < small && size < small) {
      const double excess = difference * up - (options_.atol * up + options_.rtol * (size * up));
      return excess > 0 ? std::max(excess / up, 0x1p-1074) : excess / up;
    }
    return difference - (options_.atol + options_.rtol * size);
  }

  static KDA_CHECK_INLINE bool is_among_worst(const std::vector<Point>& worst, const Point& point,
                                              std::size_t most) {
    return worst.size() < most || (!worst.empty() && before(point, worst.back()));
  }
  static void keep_worst(std::vector<Point>& worst, const Point& point, std::size_t most) {
    if (!is_among_worst(worst, point, most)) return;
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
  const TensorAxes& axes_;
  const bool has_magnitude_;
  Measures& m_;
  Strand odd_;  ///< of the run that is being counted
};

/// Adds the squares of `count` elements to the sums of one cell; with `heads` cells, the runs of as many
/// heads lie one after the other. Each sum is in the order of its elements: several at once hide the time
/// that an addition waits for the one before.
template <std::size_t heads, class Storage>
void add_squares(const Storage* elements, std::size_t count, bool squarable, Cell* cells) {
  for (std::size_t head = 0; head < heads; ++head)
    squarable = squarable && cells[head].expected2.plain() != nullptr, cells[head].elements += count;
  if (!squarable) {
    for (std::size_t head = 0; head < heads; ++head)
      for (std::size_t i = 0; i < count; ++i)
        cells[head].expected2.add_square(numeric::widen(elements[head * count + i]));
    return;
  }
  std::array<double, heads> sums;
  for (std::size_t head = 0; head < heads; ++head) sums[head] = *cells[head].expected2.plain();
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
  for (std::size_t head = 0; head < heads; ++head) *cells[head].expected2.plain() = sums[head];
}

}  // namespace kda_check::judge
