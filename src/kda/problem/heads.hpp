// Some heads of a problem as a problem of their own.
#pragma once

#include <span>
#include <vector>

#include "kda/problem/problem.hpp"

namespace kda_check::kda {

/// The value heads that read these query heads.
std::vector<std::size_t> value_heads_of(const Problem& problem, std::span<const std::size_t> query_heads);

/// The same problem with these query heads and these value heads, in this order. The i-th of n value heads
/// reads query head i / (n / query heads), as always.
Problem with_heads(const Problem& problem, std::span<const std::size_t> query_heads,
                   std::span<const std::size_t> value_heads);

/// The same of a tensor that has heads, by its name in kda/schema. `decays`: those of a head,
/// as dt_bias and its gradient have them.
tensor::Tensor with_heads(std::string_view name, const tensor::Tensor& tensor,
                          std::span<const std::size_t> query_heads, std::span<const std::size_t> value_heads,
                          std::size_t decays);

}  // namespace kda_check::kda
