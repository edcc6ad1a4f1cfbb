// What is looked at of an output that failed: tokens of one sequence in a head or two, in some columns of
// values. And what a kernel that reads the problem otherwise would give there.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "hypotheses/naming/interpretation.hpp"
#include "hypotheses/naming/rank.hpp"

namespace kda_check::hypotheses {

inline constexpr std::size_t window_tokens = 256;  // looked at, at least, where there are as many
inline constexpr std::size_t tokens_before = 64;   // of later failures: from so many tokens before

/// Whoever searches in a part of it moves its ends, and takes some of its columns.
struct OutputWindow {
  /// From the first token where that is affordable. Else from shortly before the deviation, with the right
  /// state: up to there the output was right.
  OutputWindow(const kda::Problem& problem, const FailedOutput& output, const FailurePlace& place,
               std::size_t most_tokens);

  /// o and the final state of each head, as far as they are there.
  std::vector<Unit> compared() const;
  /// The same, as the output would store what another reading gives; `heads`: what it gives in each.
  UnitValues answer(const Interpretation& reading) const;
  UnitValues stored(std::vector<ExcerptAnswer> heads) const;
  /// A fault of one head is looked for in that one.
  void leave_out_right_heads(std::vector<Unit>& units);

  /// Begins at a later token.
  void begin_at(std::size_t token);
  /// To one of the heads, some columns, and tokens from the chunk that deviates on; or from the chunk before,
  /// as what that one leaves shows at once in the next one. Returns where the chunk that deviates begins.
  std::size_t narrow(std::size_t head, std::size_t most_columns, bool with_chunk_before = false);

  std::size_t chunk_size() const { return static_cast<std::size_t>(problem.options.chunk_size); }
  /// Where the chunk of a token begins.
  std::size_t chunk_of(std::size_t token) const { return token - (token - sequence.begin) % chunk_size(); }
  bool is_in_chunk() const { return chunk_end > 0; }
  bool sees_final_state() const { return output.final_state != nullptr && end == sequence.end; }
  double got_o(std::size_t token, std::size_t head, std::size_t column) const;
  std::vector<std::size_t> all_columns() const;
  /// What is looked at of one of the heads, in some columns.
  Excerpt excerpt(std::size_t head, std::vector<std::size_t> some_columns) const;
  /// The token, not the last, behind which the state is nearest to the final one.
  std::size_t nearest_state() const;

  const kda::Problem& problem;
  const FailedOutput& output;
  const kda::Dimensions d;
  kda::Sequence sequence;
  std::size_t begin, end;                     ///< tokens
  std::size_t deviation, suspect;             ///< first token that deviates; whose error is another one
  std::size_t limit;                          ///< first that is not finite, or NaN
  std::size_t chunk_end = 0;                  ///< of the chunk that alone is wrong, where one is
  std::vector<std::size_t> heads, columns;    ///< columns: of values
  std::vector<KnownGates> gates;              ///< by head
  std::vector<std::vector<double>> starts{};  ///< by head: the state before `begin`; empty at the first token

 private:
  void find_deviation(bool (*is_known)(double));
  ExcerptAnswer answer_in(std::size_t head, const Interpretation& reading) const;
  ExcerptAnswer looked_at(const ExcerptAnswer& all, const Interpretation& reading) const;
  std::size_t element_of_state(std::size_t of_sequence, std::size_t head, std::size_t i) const;
};

/// So many of them at most, evenly from the first to the last.
std::vector<std::size_t> some_of(const std::vector<std::size_t>& columns, std::size_t most);

}  // namespace kda_check::hypotheses
