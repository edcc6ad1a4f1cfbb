// The inputs of a value head as the recurrence takes them, a block of tokens at a time.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kda/head/head_io.hpp"

namespace kda_check::kda {

/// Rows of one block of a sequence: what was read last.
struct TokenBlocks {
  /// `rows` and `whole` must stay.
  TokenBlocks(const HeadReader<double>& rows, const Problem& whole, const Sequence& of);

  /// Calls body(begin, count) for the blocks, begin counted from the first token of the sequence.
  template <class Body>
  void over(Body body) const {
    for (std::size_t begin = 0; begin < sequence.length(); begin += most)
      body(begin, std::min(most, sequence.length() - begin));
  }
  /// From the last to the first.
  template <class Body>
  void over_reversed(Body body) const {
    for (std::size_t end = sequence.length(); end > 0;) {
      const std::size_t begin = (end - 1) / most * most;
      body(begin, end - begin);
      end = begin;
    }
  }

  /// q with the scale, k, the log decay and the decay itself, beta, and what comes of gates.
  void read_tokens(std::size_t head, std::size_t begin, std::size_t count);
  /// v and do, both to `values`; zeros for a loss that has no do.
  void read_v(std::size_t head, std::size_t begin, std::size_t count);
  void read_do(std::size_t head, std::size_t begin, std::size_t count);

  static constexpr std::size_t most = 64;  ///< tokens in a block
  const HeadReader<double>& reader;
  const Problem& problem;
  const Sequence sequence;
  tensor::Scratch<double> q, k, g;  ///< [most][K]
  tensor::Scratch<float> decay;     ///< [most][K]
  tensor::Scratch<double> beta;     ///< [most]; of columns, the root of the mean of their squares
  tensor::Scratch<double> read;     ///< [most][K], with an erase gate: erase * k
  tensor::Scratch<double> write2;   ///< [most], with a write gate: the mean of its squares
  tensor::Scratch<double> v2;       ///< [most], with a write gate: |v|^2 before it
  tensor::Scratch<double> values;   ///< [most][V]
};

}  // namespace kda_check::kda
