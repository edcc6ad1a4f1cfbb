// Where the error of one tensor lies, for drawings: filled when a report asks for it (Writer::draws).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "judge/measures/measures.hpp"
#include "judge/measures/series.hpp"

namespace kda_check::report {

/// rms_ratio by heads and tokens: at most 64 groups of either, whatever the tensor.
struct ErrorMap {
  std::size_t heads = 0, tokens = 0;                    ///< 0: there is nothing to draw
  std::size_t heads_together = 1, tokens_together = 1;  ///< in each group but the last
  std::vector<double> error;  ///< [group of heads][group of tokens]; infinite where classes differ

  static constexpr std::size_t most_groups = 64;
  static std::size_t together(std::size_t count) { return count == 0 ? 1 : divided_up(count, most_groups); }
  static std::size_t divided_up(std::size_t count, std::size_t by) { return (count + by - 1) / by; }
  std::size_t groups_of_heads() const { return divided_up(heads, heads_together); }
  std::size_t groups_of_tokens() const { return divided_up(tokens, tokens_together); }
};

/// Errors summed over the batch rows. At most 64 windows, whatever the tensor.
struct ErrorProfile {
  /// Elements by their distance from expected in representable steps: [0] none, [i] from 2^(i-1) to 2^i - 1.
  std::vector<std::uint64_t> distances;
  std::vector<double> growth;  ///< rms_ratio of every window; infinite where classes differ
  ErrorMap heat;               ///< the same by heads and windows
};

/// `series` may be empty: a tensor without tokens has a histogram alone.
ErrorProfile profile_of(const judge::Measures& measures, const judge::TokenSeries& series);

}  // namespace kda_check::report
