// What `grow` found: plain data, and its two writers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/result.hpp"
#include "report/writers.hpp"

namespace kda_check::report {

struct GrowthWindow {
  std::size_t first, last;  ///< positions in the sequence, both inclusive (GrowthCase::from)
  double rms_ratio, scaled_ulp, max_abs;
};

/// log(rms_ratio) = slope log(t) + constant, over the windows whose error is not zero.
struct GrowthFit {
  std::size_t windows = 0;
  double slope = 0, standard_error = 0, r2 = 0;
};

struct GrowthHead {
  double rms_ratio = 0;
  GrowthFit fit;
  std::vector<double> window_rms_ratio;
};

struct GrowthCrossing {
  std::string metric;
  double limit = 0;
  std::string source;  ///< "derived", "command line"
  bool crossed = false;
  std::size_t position = 0;  ///< the first in its sequence; the rest only when crossed
  double value = 0;
  std::string place;  ///< "o[b=0 t=412 h=3 v=17]", whichever end positions are counted from
};

struct GrowthCase {
  std::string fixture, path;
  std::string answer;     ///< variant or expected group
  bool recorded = false;  ///< the answer came from the file
  std::string dtype, compute, arithmetic, against, tensor;
  std::string from = "start";  ///< positions are counted from the first token; "end": back from the last
  std::size_t window = 0;
  bool has_magnitude = false;  ///< scaled_ulp means something
  std::vector<GrowthWindow> windows;
  GrowthFit fit;
  std::string trend;  ///< "grows", "falls", "steady", "unclear"
  std::size_t worst_head = 0;
  std::vector<GrowthHead> heads;
  std::vector<GrowthCrossing> crossings;  ///< one for each limit

  /// The limit that is crossed first, or null.
  const GrowthCrossing* first_crossing() const;
};

struct GrowthResult {
  std::vector<std::string> argv;
  std::string oracle;
  std::vector<std::string> tensors;
  std::vector<FixtureResult> fixtures;
  std::vector<GrowthCase> cases;
  std::vector<FailedInput> errors;

  /// 0 when something was measured; 1 when not, or when a limit of the command line was crossed (derived ones
  /// are for whole tensors, and only inform); else that of the worst error.
  int exit_code() const;
};

std::string write_growth_text(const GrowthResult& result, const WriteOptions& options);
std::string write_growth_json(const GrowthResult& result);

}  // namespace kda_check::report
