// What the inputs alone say about how rounding errors grow: the range of the gates.
#pragma once

#include "kda/problem.hpp"

namespace kda_check::kda {

struct GateStatistics {
  /// Largest |sum of log decays| from the start of a chunk to one of its rows, over heads and channels.
  double largest_chunk_sum = 0;
  /// What rounding those sums G_i row by row costs in units of the roundoff, as far as it is still
  /// remembered: the largest of E_i = exp(g_i) E_i-1 + |G_i|. exp(G_i - G_j) is off by the roundings of the
  /// rows between, at most |G_r| each, and what row r brought in has since decayed by exp(G_i - G_r).
  double gate_rounding = 0;
  /// Tokens over which a channel remembers: 1 / mean |log decay|, at most the length of its sequence; the
  /// largest over heads and channels. The rounding of exp(g) is the same at every one of them when g is
  /// constant.
  double persistence = 0;
};

/// In fp64, one pass over the gates.
GateStatistics gate_statistics(const Problem& problem, std::size_t chunk_size, int threads);

}  // namespace kda_check::kda
