// What the inputs alone say about how rounding errors grow: how long a channel remembers, and the range of
// its gates.
#pragma once

#include <cstddef>
#include <vector>

#include "kda/problem/problem.hpp"

namespace kda_check::kda {

/// How much rounding a token, or a row of a state, has been through.
///
/// The persistence of a channel is m_t = e^g_t m_t-1 + 1 from the first token of a sequence on: the tokens
/// that its state is made of, each as much as is left of it. The rounding of exp(g) is the same at each of
/// them when g is constant. What an initial state brought in is as old as the sequence: t e^(g_1 + .. + g_t)
/// comes on top where there is one. Backwards the same from the last token to the first, with dht.
struct GateStatistics {
  /// Largest |sum of log decays| from the start of a chunk to one of its rows, over heads and channels.
  double largest_chunk_sum = 0;
  /// What rounding those sums G_i row by row costs in units of the roundoff, as far as it is still
  /// remembered: the largest of E_i = exp(g_i) E_i-1 + |G_i|. exp(G_i - G_j) is off by the roundings of the
  /// rows between, at most |G_r| each, and what row r brought in has since decayed by exp(G_i - G_r).
  double gate_rounding = 0;
  /// The largest persistence, forwards.
  double persistence = 0;

  /// [B][T][HV], over the channels: the largest persistence, forwards and - of problems with a loss -
  /// backwards, and the largest E, of this chunk or of an earlier one as far as the state remembers it.
  std::vector<float> behind, ahead, rounding;
  /// [N][HV]: the largest E of a head.
  std::vector<double> head_rounding;
  /// [N][HV][K], at the end of a sequence: the persistence of what its tokens brought in, forwards, and
  /// backwards at its start; E + |G|, as sums in a tree are rounded at either end of a difference; and what
  /// is left of an initial state, e^(sum of g).
  struct Channel {
    double behind = 0, ahead = 0, rounding = 0, left = 0;
  };
  std::vector<Channel> channels;
  std::vector<Channel> checkpoints;  ///< [checkpoints][HV][K], the same behind their tokens
};

/// In fp64 but for the exponentials, one pass over the gates, and one more with a loss.
GateStatistics gate_statistics(const Problem& problem, std::size_t chunk_size, int threads);

}  // namespace kda_check::kda
