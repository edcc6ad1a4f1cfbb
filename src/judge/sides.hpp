// The two sides of a comparison: what may be said of many elements at once, and what was expected of one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "judge/comparison.hpp"
#include "numeric/product_sum.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::judge {

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

/// Whether the size of every element is 0 or in [least_root, most], most being finite.
template <class Storage>
bool are_within(const Storage* elements, std::size_t count, double most_size) {
  constexpr auto least = std::bit_cast<std::int64_t>(numeric::ProductSum::least_root);
  const auto most = std::bit_cast<std::int64_t>(most_size);
  std::int64_t beyond = 0;  // negative once a difference was; 0 is as good as a number within
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::int64_t>(numeric::widen(elements[i]));
    const std::int64_t magnitude = bits & 0x7fff'ffff'ffff'ffff;
    beyond |= (most - magnitude) | ((magnitude - least) & ~(magnitude - 1));
  }
  return beyond >= 0;
}

/// Whether all elements are finite and no square of them, or of a difference of two of them, is beyond the
/// range of fp64.
template <class Storage>
bool are_squarable(const Storage* elements, std::size_t count) {
  if constexpr (sizeof(Storage) < sizeof(double)) {
    return all_finite(elements, count);
  } else {
    return are_within(elements, count, numeric::ProductSum::most_root);
  }
}

// (2 - 2^(1-p)) 2^emax, and from there to 2^(emax + 1), where infinity is on the line of numbers.
template <class Storage>
inline constexpr double step_at_overflow = [] {
  constexpr const numeric::Format& format = numeric::format_for<Storage>;
  return std::bit_cast<double>(static_cast<std::uint64_t>(format.max_exponent - format.precision + 1 + 1023)
                               << 52);
}();
template <class Storage>
inline constexpr double largest_finite =
    static_cast<double>((std::uint64_t{1} << numeric::format_for<Storage>.precision) - 1) *
    step_at_overflow<Storage>;

/// What was expected, as double-doubles with or without magnitudes.
struct WideValues {
  ExpectedValues values;

  numeric::DoubleDouble exact(std::size_t i) const { return {values.hi[i], values.lo[i]}; }
  double magnitude(std::size_t i) const { return values.magnitude[i]; }
  bool are_within(std::size_t count, double most) const { return judge::are_within(values.hi, count, most); }
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
  bool are_within(std::size_t count, double most) const { return judge::are_within(elements, count, most); }
  template <class Storage>
  Storage rounded(std::size_t i) const {
    if constexpr (std::is_same_v<Storage, Element>) {
      return elements[i];
    } else {
      return numeric::round_to<Storage>(exact(i));
    }
  }
};

}  // namespace kda_check::judge
