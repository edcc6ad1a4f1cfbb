// How the answers of a head change with its log decays: kernels lose decay - a gate in too few bits, a slow
// channel that is clamped - in a way that no row shows, and that goes on through a whole sequence.
#pragma once

#include <string_view>
#include <vector>

#include "judge/measures/head_values.hpp"
#include "kda/bounds/scaled_decays.hpp"

namespace kda_check::engine {

/// Of the difference quotients. What a direction loses by an answer in fp32 is noise beside errors of 16 bits
/// and tf32.
inline constexpr double decay_step = 0x1p-6;

class DecayDirections {
 public:
  /// Of one query head: the recurrence runs twice over its value heads.
  DecayDirections(const kda::Problem& problem, std::size_t query_head);

  /// Of value head `head` of these; `layout` is that of a tensor of the query head: "o" or "final_state".
  std::vector<judge::Direction> of(std::string_view tensor, const judge::RowLayout& layout,
                                   std::size_t head) const;

 private:
  bool has_many_channels_;
  kda::ScaledDecayAnswers answers_;
};

}  // namespace kda_check::engine
