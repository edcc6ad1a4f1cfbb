// The parts of `explain`: one output, and two.
#pragma once

#include "engine/context.hpp"
#include "hypotheses/identify.hpp"
#include "report/document.hpp"

namespace kda_check::engine {

/// What computes one pass of a recorded output, as an entry of `section`, too. `forward`, of gradients: what
/// computes its o, where that is known. Throws NoAnswer.
hypotheses::Identification identify_pass(Context& context, const plan::Case& item, std::size_t answer,
                                         kda::Pass pass, const hypotheses::Hypothesis* forward,
                                         report::Section& section);
/// Null unless it is identified.
const hypotheses::Hypothesis* known_computation(const hypotheses::Identification& found);

/// "99.8 %"; no share but the whole is 100 %.
std::string percent(double share);

/// The settings that make the difference of the two outputs of a case, with both identified: an entry of
/// `between` for each pass. Throws NoAnswer.
void compare_outputs(Context& context, const plan::Case& item, report::Section& explained,
                     report::Section& between);

}  // namespace kda_check::engine
