// From measures and limits to a verdict. A value, with its reason in words.
#pragma once

#include <string>
#include <vector>

#include "judge/limits.hpp"
#include "judge/measures/measures.hpp"

namespace kda_check::judge {

/// A derived limit on rms_ratio from here on says next to nothing.
inline constexpr double hollow_rms_ratio = 0.1;

enum class Verdict : unsigned char { pass, fail, inconclusive, skipped };

std::string_view name_of(Verdict verdict);  ///< "pass", "fail", ...

struct Judgement {
  Verdict verdict = Verdict::inconclusive;
  std::string reason;  ///< empty when passed
  std::string metric;  ///< the metric that decided, the first that failed
};

struct JudgeOptions {
  /// What is expected is exactly zero: equal inputs, or a truth made of zeros. Else an answer that is zero
  /// everywhere, like the reference, shows nothing: the truth may only be too small for either.
  bool zeros_decide = false;
};

/// No ratio is asked for that a correctly rounded answer could not meet: where the values are hardly larger
/// than the smallest steps of their element type, half of one (docs/limits.md). `exact` limits stay.
std::vector<Limit> at_least_storage(std::vector<Limit> limits, const Measures& measures);

/// INCONCLUSIVE when nothing was compared or the oracle is not finite somewhere: then the inputs are beyond
/// what can be judged, but FAIL where classes differ in a head of a sequence that is finite throughout. Else
/// FAIL when a class differs or a metric exceeds its limit (or is not a number).
/// Else INCONCLUSIVE when both sides are NaN somewhere, nowhere both finite, or zero everywhere
/// in the answer's element type, but for zeros that decide, and when no
/// limit says anything about finite values: none but nonfinite applies, or the derived rms_ratio is 1 or
/// more. Else PASS.
Judgement judge(const Measures& measures, const std::vector<Limit>& limits, const JudgeOptions& options = {});

/// The worst of several: fail, then inconclusive, then pass, then skipped; inconclusive for none.
Verdict worst_of(const std::vector<Verdict>& verdicts);

}  // namespace kda_check::judge
