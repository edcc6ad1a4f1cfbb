// The words of a launch: "norm:8x16x1+pairs:4x16x1+substitution:1x8x1+scan:4" - registers, lanes and warps of
// a row, rows of a scan -, "block:8x1" - columns and warps of a token form's program -, backwards
// "wy:64x64x4+intra:1+reverse-scan:4+norm-backward:8x16x1+gate-backward:4" - columns of K and V and warps,
// warps, rows of a scan, a row, warps - or "any".
#pragma once

#include <string>
#include <string_view>

#include "kda/arithmetic/arithmetic.hpp"

namespace kda_check::kda {

/// Throws Error{usage} for what is no launch.
Launch launch_from(std::string_view words);
std::string words_of(const Launch& launch);
/// The first part that only the other forms have, the chunk form or the token forms; empty where there is
/// none.
std::string_view foreign_part(const Launch& launch, bool chunk);
/// The first part that sums in this order do not read; empty where they read all.
std::string_view idle_part(const Launch& launch, const Reduction& reduction);

}  // namespace kda_check::kda
