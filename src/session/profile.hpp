// What a comparison kept of every token, as the few numbers a drawing needs.
#pragma once

#include "compare/measures.hpp"
#include "compare/series.hpp"
#include "report/profile.hpp"

namespace kda_check::session {

/// `series` may be empty: a tensor without tokens has a histogram alone.
report::ErrorProfile profile_of(const compare::Measures& measures, const compare::TokenSeries& series);

}  // namespace kda_check::session
