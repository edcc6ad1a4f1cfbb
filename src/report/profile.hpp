// Where the error of one tensor lies, for drawings: filled when a report asks for it (Writer::draws).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "judge/measures/measures.hpp"
#include "judge/measures/series.hpp"
#include "judge/spread/error_map.hpp"

namespace kda_check::report {

/// Errors summed over the batch rows. At most 64 windows, whatever the tensor.
struct ErrorProfile {
  /// Elements by their distance from expected in representable steps: [0] none, [i] from 2^(i-1) to 2^i - 1.
  std::vector<std::uint64_t> distances;
  std::vector<double> growth;  ///< rms_ratio of every window; infinite where classes differ
  judge::ErrorMap heat;        ///< the same by heads and windows: its cells are tokens, 0 without any
};

/// `series` may be empty: a tensor without tokens has a histogram alone.
ErrorProfile profile_of(const judge::Measures& measures, const judge::TokenSeries& series);

}  // namespace kda_check::report
