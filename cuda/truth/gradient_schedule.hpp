// In which parts the gradient oracle works through the tokens of some heads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cuda/truth/schedule.hpp"
#include "numeric/strict.hpp"

namespace kda_check::cuda {

/// Columns of rows of V elements.
inline std::size_t padded_values(std::size_t V) { return (V + 7) / 8 * 8; }

/// Tokens of one sequence.
struct GradientPiece {
  std::uint32_t first, count;   ///< tokens of the portion
  std::uint32_t begin, length;  ///< its first token in the sequence, and all tokens of that
  std::uint32_t sequence;       ///< whose states they are
  std::uint32_t checkpoint;     ///< which one enters it, where it does not begin the sequence
  std::uint32_t row, group;     ///< of the part: where its tokens begin, and its groups of tokens

  KDA_CHECK_BOTH bool begins() const { return begin == 0; }
  KDA_CHECK_BOTH bool ends() const { return begin + count == length; }
};

/// States within a part are kept every so many tokens, counted from the end of a piece: the first group of a
/// piece may be shorter.
constexpr int group_tokens = 4;
KDA_CHECK_BOTH int groups_of(int tokens) { return (tokens + group_tokens - 1) / group_tokens; }

struct GradientSizes {
  std::size_t rows = 0, pieces = 0, groups = 0;
};

/// Whole sequences side by side, or part of a single one.
struct GradientPart {
  std::vector<GradientPiece> pieces;
  std::size_t first_piece = 0;  ///< among those of all parts
  GradientSizes sizes;
  bool begins() const { return pieces.front().begins(); }  ///< one of them, which is all of them
};

/// Tokens are numbered from 0 in the order of the sequences.
struct GradientSchedule {
  GradientSchedule(const std::vector<kda::Sequence>& whole_sequences, const kda::Dimensions& dimensions,
                   std::size_t heads);

  std::vector<std::size_t> tokens;       ///< where each is among those of all batch rows
  std::vector<GradientPiece> sequences;  ///< whole
  std::vector<GradientPart> parts;       ///< from the first tokens on
  std::size_t checkpoints = 0, checkpoint_tokens = 1;
  GradientSizes most;  ///< of any part
};

/// Tokens times heads of a part at K = V = 128: long enough that its start does not show, short enough that
/// what comes down of it does not fill the host's memory.
constexpr std::size_t gradient_part_size = 8192;
constexpr std::size_t most_gradient_states = 512;  ///< side by side, of short sequences

inline GradientSchedule::GradientSchedule(const std::vector<kda::Sequence>& whole_sequences,
                                          const kda::Dimensions& d, std::size_t heads) {
  const std::size_t size =
      std::clamp<std::size_t>(gradient_part_size * (128 * 128) / (d.K * padded_values(d.V)), 1024, 65536);
  checkpoint_tokens = std::max<std::size_t>(1, size / heads);
  const std::vector<OracleStep> steps = oracle_steps(whole_sequences, checkpoint_tokens,
                                                     std::max<std::size_t>(1, most_gradient_states / heads));
  for (const kda::Sequence& sequence : whole_sequences) {
    const auto length = static_cast<std::uint32_t>(sequence.length());
    sequences.push_back({static_cast<std::uint32_t>(tokens.size()), length, 0, length,
                         static_cast<std::uint32_t>(sequence.index), static_cast<std::uint32_t>(checkpoints),
                         0, 0});
    for (std::size_t t = sequence.begin; t < sequence.end; ++t) tokens.push_back(sequence.batch * d.T + t);
    if (length > checkpoint_tokens) checkpoints += (length - 1) / checkpoint_tokens;
  }
  std::size_t next = 0, first_piece = 0;  // sequence, piece
  for (const OracleStep& step : steps) {
    GradientPart part;
    part.first_piece = first_piece;
    for (const kda::Sequence& piece : step.pieces) {
      const GradientPiece& whole = sequences[next];
      const auto begin = static_cast<std::uint32_t>(piece.begin - whole_sequences[next].begin),
                 count = static_cast<std::uint32_t>(piece.length());
      part.pieces.push_back(
          {whole.first + begin, count, begin, whole.length, whole.sequence,
           whole.checkpoint + (begin == 0 ? 0 : begin / static_cast<std::uint32_t>(checkpoint_tokens) - 1),
           static_cast<std::uint32_t>(part.sizes.rows), static_cast<std::uint32_t>(part.sizes.groups)});
      part.sizes.rows += count;
      part.sizes.groups += static_cast<std::size_t>(groups_of(static_cast<int>(count)));
      if (begin + count == whole.length) ++next;
    }
    part.sizes.pieces = part.pieces.size();
    first_piece += part.sizes.pieces;
    most.rows = std::max(most.rows, part.sizes.rows), most.pieces = std::max(most.pieces, part.sizes.pieces);
    most.groups = std::max(most.groups, part.sizes.groups);
    parts.push_back(std::move(part));
  }
}

}  // namespace kda_check::cuda
