// Where the error of one tensor lies, for drawings: filled when a report asks for it (Writer::draws).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "judge/measures.hpp"
#include "judge/series.hpp"

namespace kda_check::report {

/// Errors summed over the batch rows. At most 64 windows and 64 groups of heads, whatever the tensor.
struct ErrorProfile {
  /// Elements by their distance from expected in representable steps: [0] none, [i] from 2^(i-1) to 2^i - 1.
  std::vector<std::uint64_t> distances;
  std::size_t tokens = 0, heads = 0;  ///< of the tensor; 0 without tokens
  std::size_t window = 0;             ///< tokens in each window but the last
  std::size_t heads_together = 0;     ///< heads in each group but the last
  std::vector<double> growth;         ///< rms_ratio of every window; infinite where classes differ
  std::vector<double> heat;           ///< [group of heads][window]: the same

  std::size_t windows() const { return growth.size(); }
  std::size_t head_groups() const { return growth.empty() ? 0 : heat.size() / growth.size(); }
};

/// `series` may be empty: a tensor without tokens has a histogram alone.
ErrorProfile profile_of(const judge::Measures& measures, const judge::TokenSeries& series);

}  // namespace kda_check::report
