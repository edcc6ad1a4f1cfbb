// Some heads of a problem as a problem of their own.
#pragma once

#include <span>

#include "kda/problem.hpp"

namespace kda_check::kda {

/// The same problem with these query heads and these value heads, in this order. The i-th of n value heads
/// reads query head i / (n / query heads), as always.
Problem with_heads(const Problem& problem, std::span<const std::size_t> query_heads,
                   std::span<const std::size_t> value_heads);

}  // namespace kda_check::kda
