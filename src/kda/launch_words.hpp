// The words of a launch: "norm:8x16x1+pairs:4x16x1+substitution:1x8x1+scan:4" - registers, lanes and warps of
// a row, rows of a scan - or "any".
#pragma once

#include <string>
#include <string_view>

#include "kda/arithmetic.hpp"

namespace kda_check::kda {

/// Throws Error{usage} for what is no launch.
Launch launch_from(std::string_view words);
std::string words_of(const Launch& launch);

}  // namespace kda_check::kda
