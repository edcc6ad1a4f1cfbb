// A problem cut up and put together again: parts of its sequences as a problem of their own, and what they
// yield back in the places it has in the whole.
#pragma once

#include <cstddef>
#include <vector>

#include "kda/problem/excerpt.hpp"
#include "kda/problem/passes.hpp"
#include "kda/problem/problem.hpp"

namespace kda_check::explain {

using kda::excerpt;
using kda::HandedOver;
using kda::Layout;
using kda::layout_of;
using kda::longest_of;
using kda::row_of;

/// Whether the elements of a tensor of either pass belong to tokens or sequences; else it is the gradient of
/// a parameter, which is a sum over all of them.
bool has_places(std::string_view tensor);

std::vector<kda::Sequence> not_empty(const kda::Problem& problem);

/// To be packed: each sequence between two neighbours, parts of it that end within a chunk.
std::vector<kda::Sequence> between_neighbours(const std::vector<kda::Sequence>& sequences,
                                              std::size_t chunk_size);

/// What an excerpt yields, of its pieces `first`, `first` + `step`, ..., written over their places in what
/// the whole does. A tensor of another element type is converted.
void put_back(const kda::Tensors& part, const std::vector<kda::Sequence>& pieces, const kda::Problem& whole,
              kda::Tensors& tensors, std::size_t first = 0, std::size_t step = 1);

/// The tokens of some pieces, from what one run on the whole yields to what another does.
void copy_tokens(const kda::Tensors& from, const std::vector<kda::Sequence>& pieces,
                 const kda::Problem& whole, kda::Tensors& to);

/// Zero in the tokens of some pieces, +0.
void clear_tokens(const std::vector<kda::Sequence>& pieces, const kda::Problem& whole, kda::Tensors& tensors);

/// Heads in reverse order: query/key heads and value heads, so that the groups stay together.
kda::Problem with_heads_reversed(const kda::Problem& problem);
kda::Tensors with_heads_reversed(const kda::Tensors& tensors, const kda::Dimensions& dimensions);

/// Gives the tokens of a piece other inputs, of the same kind: finite, gates that decay.
void replace_tokens(kda::Problem& problem, const kda::Sequence& piece);

/// Gives the tokens of a piece another do, and another q.
void replace_loss(kda::Problem& problem, const kda::Sequence& piece);

/// Takes the tokens of a piece, and the final state of its sequence, out of the loss.
void remove_loss(kda::Problem& problem, const kda::Sequence& piece);

/// Makes everything of a sequence NaN: its tokens, its initial state and its loss.
void make_nan(kda::Problem& problem, const kda::Sequence& sequence);

}  // namespace kda_check::explain
