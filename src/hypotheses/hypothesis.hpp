// Computations that may have given an output: a variant in a preset, and the same with other settings.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kda/variants/variants.hpp"

namespace kda_check::hypotheses {

struct Hypothesis {
  const kda::Variant* variant = nullptr;
  std::string preset;  ///< empty: as the variant computes where nothing is asked
  std::string change;  ///< what is not the preset's (described_from): "special=ieee"; empty: nothing
  std::string word;    ///< the same as --arithmetic takes it: "special=ieee"; of several with commas between
  std::size_t changes = 0;  ///< how many
  std::string step;         ///< of a move what it sets: "decay=pair", "bf16@v_new", "chunk-size=16"
  kda::RunOptions options;
  kda::Pass pass = kda::Pass::forward;
};

/// One thing that a computation has and another may have otherwise: a key of --arithmetic, the rounding at
/// one cast point, the length of chunks.
struct Setting {
  std::string word;  ///< "decay=pair", "bf16@v_new", "chunk-size=16"; of no rounding "none@v_new"
  kda::CastPointRow::Point point = nullptr;  ///< of a cast point
  kda::Rounding rounding = kda::Rounding::none;
  std::size_t chunk_size = 0;  ///< of the length of chunks
};

std::string_view name_of(kda::Rounding rounding);  ///< "none", "bf16", ...
/// Where a computation rounds.
kda::CastPoints casts_of(const Hypothesis& hypothesis, const kda::Problem& problem);

/// Whether the problem can be computed so.
bool is_possible(const Hypothesis& hypothesis, const kda::Problem& problem);

/// The settings of `base` that `other`, of the same variant, has otherwise.
std::vector<Setting> differing_settings(const Hypothesis& base, const Hypothesis& other,
                                        const kda::Problem& problem);
Hypothesis with_setting(Hypothesis hypothesis, const Setting& setting, const kda::Problem& problem);
/// The same computation, every rounding by name, with its outputs in another format.
Hypothesis with_outputs_in(Hypothesis hypothesis, numeric::DType dtype, const kda::Problem& problem);
/// What both change of `base`, together; none where they change the same, or where that is not possible.
std::optional<Hypothesis> combined(const Hypothesis& base, const Hypothesis& a, const Hypothesis& b,
                                   const kda::Problem& problem);
/// The same computation, described as what it changes of `base`, a start.
Hypothesis described_from(const Hypothesis& base, Hypothesis hypothesis, const kda::Problem& problem);

/// Every variant of the CPU as it computes usually and in every preset, in chunks as long as those of the
/// problem and of 16, 32 and 64 tokens; what computes alike once.
std::vector<Hypothesis> starts(const kda::Problem& problem, numeric::DType dtype, kda::Pass pass);

/// Chunk forms that mix what kernels mostly do, with narrow products and without.
std::vector<Hypothesis> plain_starts(const kda::Problem& problem, numeric::DType dtype,
                                     numeric::ComputeFormat compute, kda::Pass pass);

/// One value of one axis, the length of the chunks, the rounding at one cast point or of all operands is
/// another. Numbers of an axis are usual ones.
std::vector<Hypothesis> moves(const Hypothesis& known, const kda::Problem& problem);

/// The same for ways that say the same. Forwards naive is taken for recurrent: they differ in rows of
/// Triton's alone, which are recurrent's.
std::string identity(const Hypothesis& hypothesis, const kda::Problem& problem);

/// "chunk under fla in chunks of 16 with launch=pairs:2x32x1"; the change behind a comma.
std::string text_of(const Hypothesis& hypothesis, const kda::Problem& problem);

/// "fla,launch=pairs:2x32x1,special=ieee"
std::string arithmetic_words(const Hypothesis& hypothesis, const kda::Problem& problem);

}  // namespace kda_check::hypotheses
