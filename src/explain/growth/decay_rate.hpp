// How fast a head forgets: what its gates and write strengths say about memory and growth.
#pragma once

#include <cstddef>
#include <vector>

namespace kda_check::explain {

struct DecayRate {
  double mean_log_decay = 0, least_log_decay = 0;  ///< over tokens and channels
  double persistence =
      0;  ///< tokens remembered, the most of any channel and token (kda/bounds/gate_statistics.hpp)
  double largest_chunk_sum = 0;  ///< |sum of log decays| from the start of a chunk
  double largest_write = 0;      ///< beta |k|^2; a token expands the state when it exceeds 2
  /// Bound of the growth of the state, natural log: sum over the tokens of a sequence of
  /// log max(1, |1 - beta |k|^2|), decay not counted; the largest over the sequences.
  double growth = 0;
};

/// Collects one sequence of a head, chunk by chunk.
class DecayRateScan {
 public:
  explicit DecayRateScan(std::size_t key_dim) : key_dim_(key_dim), kept_(key_dim) {}

  /// The next rows: G (sums of the log decays from the chunk's first row) and k are [rows][stride], beta
  /// [rows].
  void add(std::size_t rows, std::size_t stride, const double* G, const double* k, const double* read,
           const double* beta);
  double tokens() const { return tokens_; }
  DecayRate result() const;

 private:
  std::size_t key_dim_;
  std::vector<double> kept_;  ///< tokens remembered, by channel
  double tokens_ = 0, total_ = 0, least_ = 0;
  DecayRate worst_;
};

/// Two sequences of one head, of that many tokens.
DecayRate merged(const DecayRate& a, double a_tokens, const DecayRate& b, double b_tokens);

}  // namespace kda_check::explain
