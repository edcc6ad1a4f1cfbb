// Parts of a problem with what is recorded of its answer: what candidates are held against before everything.
#pragma once

#include <cstddef>
#include <span>

#include "kda/problem/excerpt.hpp"
#include "kda/problem/passes.hpp"

namespace kda_check::hypotheses {

struct RecordedPart {
  kda::Problem problem;
  kda::Pass pass;
  kda::Tensors recorded;
};

/// What is recorded of one pass over a whole problem: of `answer` o and final_state, or the gradients, where
/// they have the element type and the shape that a run in `dtype` gives them; a final_state in 16 bits, too,
/// as pools store it. It outlives its parts' making, not them.
class RecordedOutput {
 public:
  RecordedOutput(const kda::Problem& problem, kda::Pass pass, const kda::Tensors& answer,
                 numeric::DType dtype);

  const kda::Problem& problem() const { return problem_; }
  kda::Pass pass() const { return pass_; }
  const std::map<std::string, const tensor::Tensor*, std::less<>>& tensors() const { return tensors_; }
  /// Leaves out what the other does not have.
  void keep_those_of(const RecordedOutput& other) {
    std::erase_if(tensors_, [&](const auto& one) { return !other.tensors_.contains(one.first); });
  }

  /// Some query heads, with their value heads, of all sequences.
  RecordedPart heads(std::span<const std::size_t> queries) const;
  /// As many of the first ones as make some thousand tokens: a launch is that of all heads.
  RecordedPart first_heads() const;
  /// Parts of sequences in some query heads: one batch row, or packed where there are several. With final
  /// states, and what else a sequence has, where all of these are whole. `handed`: states that the parts
  /// start from.
  RecordedPart parts(std::span<const std::size_t> queries, const std::vector<kda::Sequence>& pieces,
                     const kda::HandedOver& handed = {}) const;
  /// The first tokens of a sequence in one query head; with the final state where these are all.
  RecordedPart beginning(const kda::Sequence& sequence, std::size_t query, std::size_t tokens) const;

 private:
  tensor::Tensor with_heads(const tensor::Tensor& tensor, std::span<const std::size_t> queries) const;

  const kda::Problem& problem_;
  const kda::Pass pass_;
  std::map<std::string, const tensor::Tensor*, std::less<>> tensors_;
};

/// An answer as it would be recorded: its final_state in 16 bits, to nearest even, where `recorded` has that.
kda::Tensors as_recorded(kda::Tensors answer, const kda::Tensors& recorded);

/// Elements of `recorded` whose bits are others in `answer`, all tensors together.
std::size_t differing_bits(const kda::Tensors& answer, const kda::Tensors& recorded);

}  // namespace kda_check::hypotheses
