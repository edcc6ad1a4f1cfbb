// Sequences of a problem, and parts of them as a problem of their own.
#pragma once

#include <cstddef>
#include <vector>

#include "kda/problem/problem.hpp"

namespace kda_check::kda {

/// How pieces become a problem: one batch row each (they have one length then), or packed behind one another.
enum class Layout : unsigned char { rows, packed };
/// That of the problem itself.
Layout layout_of(const Problem& problem);

/// Tokens of the longest; 0 without any.
std::size_t longest_of(const std::vector<Sequence>& sequences);

/// The number of token `token` of a sequence among those of all batch rows.
std::size_t row_of(const Problem& problem, const Sequence& sequence, std::size_t token);

/// States handed from piece to piece, one for each sequence of the whole; null: as the whole has them.
struct HandedOver {
  const tensor::Tensor* states = nullptr;           ///< that the pieces start from
  const tensor::Tensor* state_gradients = nullptr;  ///< of those they end with
};

/// Parts of sequences as sequences 0, 1, ... of a problem, with the loss of their tokens and final states. A
/// piece has the states of number `index`.
Problem excerpt(const Problem& whole, const std::vector<Sequence>& pieces, Layout layout,
                const HandedOver& handed = {});

}  // namespace kda_check::kda
