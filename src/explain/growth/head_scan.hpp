// What gates, keys and write strengths say of one head, in fp64: chunk by chunk, through all sequences.
#pragma once

#include <vector>

#include "explain/growth/exponent_range.hpp"
#include "explain/growth/inverse_growth.hpp"
#include "kda/problem/problem.hpp"
#include "kda/problem/run.hpp"

namespace kda_check::explain {

/// How fast a head forgets.
struct DecayRate {
  double mean_log_decay = 0, least_log_decay = 0;  ///< over tokens and channels
  double persistence =
      0;  ///< tokens remembered, the most of any channel and token (kda/bounds/gate_statistics.hpp)
  double largest_chunk_sum = 0;  ///< |sum of log decays| from the start of a chunk
  double largest_write = 0;      ///< beta |k|^2; a token expands the state when it exceeds 2
  /// Bound of the growth of the state, natural log: sum over the tokens of a sequence of
  /// log max(1, |1 - beta |k|^2|), decay not counted; the largest over the sequences.
  double growth = 0;
};

struct HeadFindings {
  std::vector<ExponentRange> ranges;  ///< by form
  InverseGrowth growth;
  DecayRate decay_rate;
  double largest_operand = 0;  ///< |q|, |k|
};

/// `forms`: the decay forms to follow. Chunks with something that is not finite are left out.
HeadFindings scan_head(const kda::Problem& problem, std::size_t head, const kda::RunOptions& options,
                       const std::vector<kda::Arithmetic>& forms);

}  // namespace kda_check::explain
