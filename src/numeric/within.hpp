// What may be said of the sizes of many elements at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numeric/product_sum.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::numeric {

// (2 - 2^(1-p)) 2^emax, and from there to 2^(emax + 1), where infinity is on the line of numbers.
template <class Storage>
inline constexpr double step_at_overflow = [] {
  constexpr const Format& format = format_for<Storage>;
  return __builtin_bit_cast(
      double, static_cast<std::uint64_t>(format.max_exponent - format.precision + 1 + 1023) << 52);
}();
template <class Storage>
inline constexpr double largest_finite =
    static_cast<double>((std::uint64_t{1} << format_for<Storage>.precision) - 1) * step_at_overflow<Storage>;

/// Whether no element is infinite or NaN.
template <class Storage>
bool all_finite(const Storage* elements, std::size_t count) {
  using Bits = BitsOf<Storage>;
  constexpr const Format& format = format_for<Storage>;
  constexpr auto exponent = static_cast<Bits>(
      ((std::uint64_t{1} << (format.bytes * 8 - static_cast<std::size_t>(format.precision))) - 1)
      << (format.precision - 1));
  constexpr auto lowest = static_cast<Bits>(std::uint64_t{1} << (format.precision - 1));
  Bits carried = 0;  // into the place of the sign, by an exponent of ones
  for (std::size_t i = 0; i < count; ++i) {
    const auto sum = static_cast<Bits>((__builtin_bit_cast(Bits, elements[i]) & exponent) + lowest);
    carried |= sum;
  }
  return static_cast<Bits>(carried >> (sizeof(Bits) * 8 - 1)) == 0;
}

/// Whether the size of every element is 0 or in [least_root, most], most being finite.
template <class Storage>
bool are_within(const Storage* elements, std::size_t count, double most_size) {
  if constexpr (sizeof(Storage) < sizeof(double))
    if (most_size >= largest_finite<Storage>) return all_finite(elements, count);
  constexpr auto least = __builtin_bit_cast(std::int64_t, ProductSum::least_root);
  const auto most = __builtin_bit_cast(std::int64_t, most_size);
  std::int64_t beyond = 0;  // negative once a difference was; 0 is as good as a number within
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = __builtin_bit_cast(std::int64_t, widen(elements[i]));
    const std::int64_t magnitude = bits & 0x7fff'ffff'ffff'ffff;
    beyond |= (most - magnitude) | ((magnitude - least) & ~(magnitude - 1));
  }
  return beyond >= 0;
}

}  // namespace kda_check::numeric
