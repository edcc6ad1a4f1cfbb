// What a metric may be: derived from the arithmetic and the inputs, or set by hand. The last source wins,
// metric by metric, and every limit remembers where it came from.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "judge/measures/units_lost.hpp"
#include "numeric/formats.hpp"

namespace kda_check::judge {

struct Limit {
  std::string metric;
  double value = 0;    ///< passes when |measured| <= value
  std::string source;  ///< "derived", "stable" (judge/verdict.hpp), "replay", "cases/tolerances.toml:12",
                       ///< "command line"
};

/// What cancels (docs/verdicts.md), relative to the tensor, by its rms.
struct Condition {
  /// How far the tensor's values lie below their terms; at least 1, infinite where only the oracle knows and
  /// was not asked.
  double cancellation = 1;
  /// How far below what was rounded on the way to them: what operands that are off by 1 of themselves add.
  double rounding = 0;
  /// The same of the terms of a chunk's triangular solve.
  double solving = 0;
  /// How far the magnitudes of the tensor lie below either, where they do not count all of it; at least 1.
  double magnitude = 1;
  /// The largest errors of what lies behind an element of o, over its magnitude, of either kind.
  double rounding_behind = 0, solving_behind = 0;
};

struct Computation {
  numeric::ComputeFormat compute;
  numeric::DType storage;  ///< element type of the tensor judged
  UnitsLost units;
  /// How far the least magnitude of the tensor lies below a typical one: smallness_of_sums() for o, else 1.
  double smallness = 1;
  Condition condition = {};
  /// Units lost in terms of another kind, much larger than those of the tensor, that cancel
  /// (docs/verdicts.md); of fp32 behind operands in tf32, bf16 and fp16.
  double excess = 0;
};

/// Somebody set it: it follows neither from the arithmetic, the inputs and what computes it, nor from a
/// replay or an invariant.
bool is_set_by_hand(const Limit& limit);

/// That on a metric; null without one.
const Limit* find_limit(const std::vector<Limit>& limits, std::string_view metric);

/// N^(1/K): the least of N sums of K independent terms |q_k S_k| is a typical one divided by this.
double smallness_of_sums(std::size_t N, std::size_t K);

/// Root mean square of `values` over that of as many `others`, but for NaN values and infinite others; 0
/// without values, infinite where only the others are zero.
double ratio_of_sizes(std::span<const double> values, std::span<const double> others);

/// Limits on nonfinite, rms_ratio and scaled_ulp for `got` against the truth, or against another answer,
/// whose own error is then allowed for as well. Formulas and the measurements behind them: docs/verdicts.md.
std::vector<Limit> derived_limits(const Computation& got,
                                  const std::optional<Computation>& expected = std::nullopt);

/// Of an answer that is to be another, bit for bit; their source is "replay".
std::vector<Limit> replay_limits();

/// One limit asked for by the user: METRIC=VALUE, METRIC=exact or METRIC=none.
struct LimitRequest {
  std::string metric;
  double value = 0;
  bool none = false;   ///< drop the limit on this metric
  bool exact = false;  ///< 0, and meant
};

/// "none", "exact" or a number >= 0; nothing of other words.
std::optional<LimitRequest> limit_request(std::string_view metric, std::string_view value);

/// Throws Error{usage} for a metric that does not exist or a value that is not a number >= 0.
LimitRequest parse_limit(std::string_view text);

/// Throws Error{usage} when a requested limit is finer than the element type of the tensor can meet, even
/// correctly rounded, and does not say exact. atol and rtol likewise.
void refuse_limits_finer_than_storage(const std::vector<LimitRequest>& requests, double atol, double rtol,
                                      numeric::DType storage);

/// Limits from one place, laid over those below metric by metric.
struct LimitLayer {
  std::string source;  ///< "cases/tolerances.toml:12", "@ci:24", "command line"
  std::vector<LimitRequest> requests;
};
std::vector<Limit> overlaid(std::vector<Limit> limits, const std::vector<LimitLayer>& layers);
/// Whether no element may differ.
bool ask_for_bits(const std::vector<LimitLayer>& layers);

}  // namespace kda_check::judge
