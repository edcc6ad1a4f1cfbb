// How an output is computed, as far as anybody knows: by us, in settings that are ours, or as a search finds.
#pragma once

#include <optional>
#include <string>

#include "engine/answered.hpp"
#include "hypotheses/identify.hpp"

namespace kda_check::engine {

struct Computation {
  /// None: it computes unlike anything that is known.
  std::optional<hypotheses::Hypothesis> hypothesis = {};
  /// What its class licenses of that; where it computes unlike anything that is known, of what comes nearest,
  /// which is one of its twins then.
  std::optional<hypotheses::Hypothesis> licensed = {};
  /// Somebody else ran it: differences from what the hypothesis gives count, but for this share of the error.
  std::optional<double> left = {};
  bool is_whole = false;  ///< it gives all of the output, faults included
  bool is_exact = false;  ///< ... to the bit, as far as it was looked at: no search finds a better one
  bool gives_most =
      false;  ///< ... to the bit: what it does not give is wrong; else another computation may give it
  bool looks_further = false;   ///< where nothing is known: what hardly anybody computes is a twin, too
  std::string text = {};        ///< "chunk under fla with launch=pairs:4x32x1"
  std::string unlicensed = {};  ///< a rounding that its class does not license: "beta is rounded to bf16"
  bool is_as_declared = true;   ///< no: what is said of it explains clearly less

  bool is_known() const { return hypothesis.has_value(); }
};

/// Of a variant of ours.
Computation computation_of_variant(const Answered& output, const kda::Problem& problem);

/// Of an output that somebody else computed. `forward`, of gradients: what computes its o, where that is
/// known. Throws Error{environment} for want of memory.
Computation identified_computation(const Answered& output, const kda::Problem& problem,
                                   const hypotheses::Hypothesis* forward,
                                   const hypotheses::SearchSettings& settings);

}  // namespace kda_check::engine
