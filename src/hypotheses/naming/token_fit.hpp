// Which numbers a head was given at its tokens, if its rows of o follow from others than they should be: one
// or two a token, which a row of V elements tells.
#pragma once

#include "hypotheses/naming/output_window.hpp"

namespace kda_check::hypotheses {

/// Puts the cause into `naming`, which has none; nothing where rows of o have too few elements. All columns
/// are looked at.
void rank_token_numbers(const OutputWindow& window, const Thresholds& thresholds, int threads,
                        Naming& naming);

}  // namespace kda_check::hypotheses
