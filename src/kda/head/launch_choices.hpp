// What a launch may be on a problem: the layouts that Triton's autotuner chooses among.
#pragma once

#include <cstddef>
#include <vector>

#include "kda/arithmetic/arithmetic.hpp"
#include "kda/problem/outline.hpp"
#include "kda/problem/passes.hpp"

namespace kda_check::kda {

/// Whether scores are summed pair by pair where two tokens are near.
bool has_sums_by_pairs(DecayForm form);

/// Of each part the one that a launch stands for which leaves it open, then the others. None of a part that
/// decides no bit.
struct LaunchChoices {
  std::vector<RowLayout> norm, pairs, substitution;
  std::vector<std::size_t> scan_rows;
  // Backwards.
  std::vector<WyBlock> wy;
  std::vector<std::size_t> intra_warps, reverse_scan_rows, gate_warps;
  std::vector<RowLayout> norm_gradient;
};
/// The backward pass computes the forward one again, and has its parts, too.
LaunchChoices launch_choices(const Outline& problem, const Arithmetic& arithmetic, Pass pass);

/// With the first choice for every part that `launch` leaves open.
Launch filled_in(Launch launch, const LaunchChoices& choices);
/// That of a run: where its arithmetic leaves a part open, the first choice.
Launch launch_in(const Outline& problem, const Arithmetic& arithmetic, Pass pass);
/// Without the parts that are the first choice: "any" in words where all are.
Launch left_open(Launch launch, const LaunchChoices& choices);

}  // namespace kda_check::kda
