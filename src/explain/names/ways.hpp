// Ways to compute an answer that have names: a variant in a preset, and the same but for one word.
#pragma once

#include <string>
#include <vector>

#include "kda/variants/variants.hpp"

namespace kda_check::explain {

struct Way {
  const kda::Variant* variant = nullptr;
  std::string preset;  ///< empty: as the variant computes where nothing is asked
  std::string change;  ///< what is not the preset's: "special=triton -> special=ieee"; empty: nothing
  std::string word;    ///< the same as --arithmetic takes it: "special=ieee"
  kda::RunOptions options;
  kda::Pass pass = kda::Pass::forward;
};

/// Every variant of the CPU as it computes usually and in every preset, in chunks as long as those of the
/// problem and of 16, 32 and 64 tokens; what computes alike once.
std::vector<Way> known_ways(const kda::Problem& problem, numeric::DType dtype, kda::Pass pass);

/// One value of one axis, the length of the chunks or the rounding at one cast point is another. Numbers of
/// an axis are usual ones.
std::vector<Way> ways_near(const Way& known, const kda::Problem& problem);

/// The same for ways that say the same. Forwards naive is taken for recurrent: they differ in rows of
/// Triton's alone, which are recurrent's.
std::string identity(const Way& way, const kda::Problem& problem);

/// "chunk under fla in chunks of 16 with launch=pairs:2x32x1"; the change behind a comma.
std::string text_of(const Way& way, const kda::Problem& problem);

/// "fla,launch=pairs:2x32x1,special=ieee"
std::string arithmetic_words(const Way& way, const kda::Problem& problem);

}  // namespace kda_check::explain
