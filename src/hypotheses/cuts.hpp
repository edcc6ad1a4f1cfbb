// What computations are tried on: the smallest parts of a problem that tell them apart.
#pragma once

#include <optional>

#include "hypotheses/errors.hpp"
#include "hypotheses/hypothesis.hpp"
#include "hypotheses/recorded.hpp"

namespace kda_check::hypotheses {

/// A part with its truth.
struct Cut {
  RecordedPart part;
  HeldOracle truth;
  std::size_t from_token = 0;  ///< earlier ones are computed, and not compared
};

/// Forwards, the recurrence being causal, the first tokens of a few heads: at least 256, and three of the
/// problem's chunks; of the heads that decay least, middling and most. The second cut is of other heads and
/// later tokens.
///
/// Backwards whole sequences of such heads. Of long ones the last tokens, behind a state that `forward`, the
/// computation of the same output's o, brings there; the truth starts from the exact state.
///
/// A small problem is one cut. In the small ones fewer settings count, and each is quickly tried.
struct Cuts {
  Cut first;
  std::optional<Cut> second;
  std::vector<Cut> small;       ///< beginnings of the first one, backwards an end; the shortest first
  bool small_are_exact = true;  ///< no: nobody said what brings the state that an end starts from
};
Cuts cuts_of(const RecordedOutput& recorded, const Hypothesis* forward, int threads);

}  // namespace kda_check::hypotheses
