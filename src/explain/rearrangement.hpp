// A problem cut up and put together again: parts of its sequences as a problem of their own, and their answer
// back in the places it has in the whole.
#pragma once

#include <cstddef>
#include <vector>

#include "kda/problem.hpp"
#include "kda/variants.hpp"

namespace kda_check::explain {

/// How pieces become a problem: one batch row each (they have one length then), or packed behind one another.
enum class Layout : unsigned char { rows, packed };
/// That of the problem itself.
Layout layout_of(const kda::Problem& problem);

/// Parts of sequences as sequences 0, 1, ... of a problem, which starts from `states`: a tensor with one for
/// each sequence of the whole; null: from the initial states of the whole.
kda::Problem excerpt(const kda::Problem& whole, const std::vector<kda::Sequence>& pieces, Layout layout,
                     const tensor::Tensor* states = nullptr);

/// The answer to an excerpt, written over the places of its pieces in an answer to the whole. A tensor of
/// another element type is converted.
void put_back(const kda::Answer& part, const std::vector<kda::Sequence>& pieces, const kda::Problem& whole,
              kda::Answer& answer);

/// Heads in reverse order: query/key heads and value heads, so that the groups stay together.
kda::Problem with_heads_reversed(const kda::Problem& problem);
kda::Answer with_heads_reversed(const kda::Answer& answer);

/// Gives tokens [begin, end) of a sequence other inputs, of the same kind: finite, gates that decay.
void replace_tokens(kda::Problem& problem, std::size_t sequence, std::size_t begin, std::size_t end);

/// Makes everything of a sequence NaN: its tokens and its initial state.
void make_nan(kda::Problem& problem, std::size_t sequence);

kda::Answer clone(const kda::Answer& answer);

}  // namespace kda_check::explain
