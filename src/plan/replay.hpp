// GPU variants and the CPU variants that give the same bits in the same arithmetic: what `run --against
// replay` compares, and how `explain` and `--stages` take a GPU variant apart.
#pragma once

#include <string>

#include "kda/variants/variants.hpp"

namespace kda_check::plan {

/// The variant that gives the bits of `variant` on the CPU, in any arithmetic: itself, or its replay.
const kda::Variant& on_cpu(const kda::Variant& variant);

/// Why no run on the CPU gives the bits of this run of a GPU variant; empty when one does, and for variants
/// of the CPU.
std::string why_no_replay(const kda::Variant& variant, const kda::Outline& problem,
                          const kda::RunOptions& options);

}  // namespace kda_check::plan
