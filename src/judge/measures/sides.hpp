// The two sides of a comparison: what may be said of many elements at once, and what was expected of one.
#pragma once

#include <cstddef>
#include <type_traits>

#include "judge/measures/comparison.hpp"
#include "kda/kernels/table.hpp"
#include "numeric/product_sum.hpp"
#include "numeric/rounding.hpp"

namespace kda_check::judge {

/// Whether the size of every element is 0 or in [least_root, most], most being finite.
template <class Element>
bool sizes_within(const Element* elements, std::size_t count, double most) {
  return kda::kernel_table().elements.within(numeric::StorageTraits<Element>::dtype, elements, count, most);
}

/// Whether all elements are finite and no square of them, or of a difference of two of them, is beyond the
/// range of fp64.
template <class Element>
bool are_squarable(const Element* elements, std::size_t count) {
  return sizes_within(elements, count, numeric::ProductSum::most_root);
}

/// Room for what is expected of some elements.
struct ExpectedRoom {
  double hi[kda::elements_at_once];
};

/// What was expected, as double-doubles with or without magnitudes.
struct WideValues {
  ExpectedValues values;

  numeric::DoubleDouble exact(std::size_t i) const { return {values.hi[i], values.lo[i]}; }
  double magnitude(std::size_t i) const { return values.magnitude[i]; }
  bool are_within(std::size_t count, double most) const { return sizes_within(values.hi, count, most); }
  /// Of [begin, begin + count).
  ExpectedValues some(std::size_t begin, std::size_t, ExpectedRoom&) const { return values.from(begin); }
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
  bool are_within(std::size_t count, double most) const { return sizes_within(elements, count, most); }
  ExpectedValues some(std::size_t begin, std::size_t count, ExpectedRoom& room) const {
    static constexpr double zeros[kda::elements_at_once] = {};
    kda::kernel_table().fp64.widen(numeric::StorageTraits<Element>::dtype, elements + begin, room.hi, count);
    return {room.hi, zeros, nullptr};
  }
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
