// The verdict on a tensor: from what was measured of it to PASS, FAIL or INCONCLUSIVE, with the reason in
// words. The only place that decides (docs/verdicts.md).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "judge/limits.hpp"
#include "judge/measures/measures.hpp"
#include "judge/spread/twin_judgement.hpp"
#include "numeric/formats.hpp"

namespace kda_check::judge {

/// What decides. Calibration: docs/verdicts.md, "Error rates".
struct VerdictConstants {
  /// A correct kernel errs by at most so many times what the stable computation does, whatever is derived,
  /// and may err by so many times that; where few errors decide, of which each may be small by luck, by more.
  double margin = 4, least_margin = 2.5, margin_of_few = 6, most_of_few = 40;
  /// An element, of an output that its computation gives whole, over what is derived of other chunks.
  double margin_of_whole = 16;
  /// ... and by so many half steps of what sums are formed in, where few errors decide of what products read:
  /// that the stable computation errs less is luck.
  double least_steps = 6;
  /// Statistic over limit: one healthy output in some 20000 is beyond its twins, hardly one by that much;
  /// where nobody knows how it computes, twins of other structures are further apart.
  double beyond_its_computation = 1.5, beyond_all_algorithms = 3;
  /// ... and with so few errors, which do not tell computations apart.
  double beyond_with_few = 4;
  std::size_t few_errors = 2000;
  /// Error of an element over its terms, in units of these: it has none, and others cancel.
  double no_terms = 0x1p40;
  /// The least error that has to be seen, in units of the terms that the truth is a sum of; between two
  /// outputs, of which both may err.
  double floor = 0.05, floor_of_two = 0.2;
};
inline constexpr VerdictConstants verdict_constants{};

enum class Verdict : unsigned char { pass, fail, inconclusive, skipped };

std::string_view name_of(Verdict verdict);  ///< "pass", "fail", ...

struct Judgement {
  Verdict verdict = Verdict::inconclusive;
  std::string reason;         ///< empty when passed
  std::string metric;         ///< the metric that decided, the first that failed
  std::vector<Limit> limits;  ///< that applied
  double floor = 0;           ///< the least error that is seen, in units of its terms; 0: any bit
};

/// What a verdict follows from beside measures and derived limits.
struct Evidence {
  /// What is expected is exactly zero: equal inputs, or a truth made of zeros. Else an answer that is zero
  /// everywhere, like the reference, shows nothing: the truth may only be too small for either.
  bool zeros_decide = false;
  bool backward = false;
  /// A kernel's chunks may sum terms that the recurrence has not, and no derivative is formed of values
  /// near 1.
  bool chunks_cancel = false;
  bool is_sum_over_tokens = false;
  bool of_two_outputs = false;
  double terms = 1;             ///< how many times larger they are than the truth, rms
  double stable_rms_ratio = 0;  ///< what stable computations read; 0: nobody asked
  numeric::ComputeFormat compute = numeric::ComputeFormat::fp64;  ///< of products
  std::optional<TwinJudgement> twins = {};
  bool computation_is_known = false;
  bool computation_is_whole = false;  ///< it gives all of the output, on the parts where it was looked for
  std::string unlicensed = {};        ///< "beta is rounded to bf16"
  std::string computes_as = {};       ///< what gives all of it
  std::string not_as_declared = {};   ///< ... where something else is said, and that is to fail
  std::optional<double> floor = {};   ///< asked for: above it nothing is decided
  std::optional<Verdict> undecided = {};  ///< what INCONCLUSIVE is to be
  std::vector<LimitLayer> by_hand = {};   ///< laid over what is derived
};

/// Derived limits on a tensor of so many elements, no tighter and no wider than what the stable computation
/// reads says.
std::vector<Limit> bounds(std::vector<Limit> derived, const Evidence& evidence, std::size_t elements);

/// The first that applies:
/// 1 a class differs where the oracle decides it: FAIL;
/// 2 a bound is exceeded, derived or margin times what the stable computation reads, or set by hand: FAIL; an
///   unlicensed rounding: FAIL;
/// 3 beyond its twins where the computation is known, else clearly, in a region or by a gain: FAIL; hardly,
///   or evenly: INCONCLUSIVE;
/// 4 nothing was to be seen: no element, zeros, NaN on both sides, the truth not finite, or only what is
///   above the floor: INCONCLUSIVE. Else PASS.
Judgement judge(const Measures& measures, std::vector<Limit> derived, const Evidence& evidence = {});

/// The worst of several: fail, then inconclusive, then pass, then skipped; inconclusive for none.
Verdict worst_of(const std::vector<Verdict>& verdicts);

}  // namespace kda_check::judge
