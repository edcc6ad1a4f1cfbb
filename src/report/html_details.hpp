// The part of the page about one row: figures, limits, points and drawings.
#pragma once

#include <cstddef>
#include <string>

#include "report/cells.hpp"

namespace kda_check::report {

/// "✗ FAIL" in its colour.
std::string verdict_html(compare::Verdict verdict);

/// A figure as short text that carries its exact value: <data value="0.0012345">0.00123</data>.
std::string figure_html(double value);

/// The limit that is closest to being crossed, "rms_ratio 43 %" of it; or "nonfinite 3 > 0"; "-" without any.
std::string closest_limit(const TensorResult& tensor);

/// A folded block, open for what did not pass; its anchor is r<number>.
std::string details_html(const Result& result, const Row& row, std::size_t number);

}  // namespace kda_check::report
