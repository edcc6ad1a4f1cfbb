// What the inputs alone say about how rounding errors grow: the range of the gates.
#pragma once

#include "kda/problem.hpp"

namespace kda_check::kda {

struct Regime {
  /// Largest |sum of log decays| from the start of a chunk to one of its rows, over heads and channels:
  /// exponents of that size carry a relative error of the unit roundoff times it.
  double largest_chunk_sum = 0;
  /// Tokens over which a channel remembers: 1 / mean |log decay|, at most the length of its sequence; the
  /// largest over heads and channels. The rounding of exp(g) is the same at every one of them when g is
  /// constant.
  double persistence = 0;
};

/// In fp64, one pass over the gates.
Regime regime_of(const Problem& problem, std::size_t chunk_size, int threads);

}  // namespace kda_check::kda
