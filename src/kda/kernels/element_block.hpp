// Elements of an answer beside what is expected of them: what judge/measures/elements.hpp counts, many at
// once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kda_check::kda {

inline constexpr std::size_t elements_at_once = 64;

/// The largest errors so far. An element none of whose errors is larger changes none of them.
struct LargestErrors {
  double distance, difference, ulps, rank, excess;
  double relative;  ///< a little less, so that no division is needed
};

/// Neighbours, at most elements_at_once, that are ordinary (judge/measures/elements.hpp).
struct ElementBlock {
  std::size_t count;
  const void* got;
  const double *hi, *lo;    ///< what is expected
  const double* magnitude;  ///< null: none
  double atol, rtol;        ///< of `outside`
  LargestErrors largest;
  double difference2, expected2, product;  ///< in and out: the sums of a cell, in the order of elements
  std::uint64_t differing, differing_bits, outside;  ///< out, as in judge/measures/measures.hpp
  bool got_zero, expected_zero;                      ///< out: of all of them
  bool has_larger;                                   ///< out: any may change the largest errors
  std::uint64_t may_be_larger[elements_at_once];     ///< out: not 0 if this one may
  double difference[elements_at_once];               ///< out: got - expected
  double rank[elements_at_once];                     ///< out: that in units of the magnitude, or 0
  std::uint64_t bin[elements_at_once];               ///< out: of the distance (numeric/distance_bins.hpp)
};

}  // namespace kda_check::kda
