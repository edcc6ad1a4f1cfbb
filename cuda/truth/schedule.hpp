// In which pieces the oracle works through the tokens of a problem.
#pragma once

#include <cstddef>
#include <vector>

#include "kda/terms/options.hpp"

namespace kda_check::cuda {

/// What the device computes at once: whole sequences side by side, or part of a single one.
struct OracleStep {
  std::vector<kda::Sequence> pieces;
  bool begins, ends;  ///< the sequences: their states are to be set, to be handed out

  std::size_t tokens() const {
    std::size_t sum = 0;
    for (const kda::Sequence& piece : pieces) sum += piece.length();
    return sum;
  }
};

/// At most `most_tokens` tokens and `most_sequences` sequences a step. A sequence of several steps has them
/// for itself, each but the last of `most_tokens` tokens.
inline std::vector<OracleStep> oracle_steps(const std::vector<kda::Sequence>& sequences,
                                            std::size_t most_tokens, std::size_t most_sequences) {
  std::vector<OracleStep> steps;
  std::size_t room = 0;
  for (const kda::Sequence& sequence : sequences) {
    if (sequence.length() > most_tokens) {
      for (std::size_t t = 0; t < sequence.length(); t += most_tokens)
        steps.push_back({{sequence.block(t, most_tokens)}, t == 0, t + most_tokens >= sequence.length()});
      room = 0;
      continue;
    }
    if (steps.empty() || sequence.length() > room || steps.back().pieces.size() == most_sequences ||
        !steps.back().begins || !steps.back().ends) {
      steps.push_back({{}, true, true});
      room = most_tokens;
    }
    steps.back().pieces.push_back(sequence);
    room -= sequence.length();
  }
  return steps;
}

}  // namespace kda_check::cuda
