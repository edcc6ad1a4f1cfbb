// What `run --stages` and `attribute` found: plain data. Included by result.hpp's users that print it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace kda_check::report {

struct StageRowResult {
  std::string name, dtype;
  double rms_ratio = 0, scaled_ulp = 0, max_ulp = 0;
  std::size_t compared = 0;   ///< elements finite on both sides: what the figures are over
  std::size_t nonfinite = 0;  ///< elements that are not finite where the truth is
  /// The same with every stage before it given exactly: the error born here. Only of answers computed here.
  std::optional<double> own_rms_ratio, own_scaled_ulp;
  double cancelled_bits = 0;  ///< log2 of rms(sum of |terms|) over rms(value)
  double limit = 0;           ///< units in the last place of the magnitude that still count as agreeing
  std::string worst;          ///< "Aqk[b=0 t=3 h=1 j=2]"
};

/// The stages of one answer against the truth.
struct StageCase {
  std::string fixture, path, answer, dtype, compute, arithmetic;
  bool recorded = false;
  std::vector<StageRowResult> rows;
  std::string divergence;                  ///< the first place beyond it, in words; empty: none
  std::vector<std::string> disagreements;  ///< with recorded stages: "with expected/fla_chunk: ..."
};

}  // namespace kda_check::report
