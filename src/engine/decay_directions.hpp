// How the answers of a head change with its log decays: kernels lose decay - a gate in too few bits, a slow
// channel that is clamped - in a way that no row shows, and that goes on through a whole sequence.
#pragma once

#include <string_view>
#include <vector>

#include "judge/head_values.hpp"
#include "kda/variants.hpp"

namespace kda_check::engine {

class DecayDirections {
 public:
  /// Of a forward problem of few heads: the recurrence runs twice.
  explicit DecayDirections(const kda::Problem& problem);

  /// Of head `head` of that problem, whose truth this is, for every log decay that is twice as large;
  /// `layout` is that of a tensor of the problem: "o" or "final_state". Those that are finite.
  std::vector<judge::Direction> of(std::string_view tensor, const judge::RowLayout& layout, std::size_t head,
                                   const judge::HeadRows& truth) const;

 private:
  struct Changed {
    judge::Region region;
    kda::Answer answer;
  };
  std::vector<Changed> changed_;
};

}  // namespace kda_check::engine
