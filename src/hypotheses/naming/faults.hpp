// What kernels, ports and fixtures have got wrong before, one row each (docs/explain.md). To add one, add a
// row.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "hypotheses/naming/interpretation.hpp"

namespace kda_check::hypotheses {

struct Fault {
  /// What `at` is, and so how often it is tried.
  enum class At : unsigned char {
    everywhere,
    token,     ///< one that shows at once, or somewhat later
    start,     ///< of a part that a sequence is computed in: the first token that deviates
    stored,    ///< one behind which the state is the final one
    chunk,     ///< rows of the kernel's chunks
    part,      ///< tokens of the parts that a sequence is computed in
    block,     ///< which of inverse_products
    head,      ///< how many heads further the other one is
    row,       ///< which RowOf
    layout,    ///< which of token_inputs times their layouts, and which of input_layouts
    function,  ///< which of other_softplus
    factor,    ///< what is wrong by a factor: that factor, in units of `factor_unit`; it is fitted
  };
  static constexpr double factor_unit = 1e-9;

  std::string_view name;
  std::string_view meaning;  ///< goes on after "as if"
  /// False where it would change nothing, or means nothing.
  bool (*applies)(const kda::Problem& problem);
  void (*change)(Interpretation& reading, std::size_t at);  ///< none: of a term
  At at = At::everywhere;
  /// Like others that are there: names failures, and is not tried by selftest and power.
  bool is_variation = false;
  bool in_part = false;  ///< of the channels of a key: of the first ones, then of the last (Channels)
  ChunkTerm term = ChunkTerm::none;
  TermFault of_term = TermFault::lost;

  /// Turns the right reading into this one.
  void apply(Interpretation& reading, std::size_t at) const;
};

std::span<const Fault> faults();
/// Of `at`, behind its meaning: " (chunks of 64)".
std::string words_of_place(const Fault& fault, std::size_t at);

inline bool is_at_token(const Fault& fault) {
  return fault.at == Fault::At::token || fault.at == Fault::At::start || fault.at == Fault::At::stored;
}
/// What `at` is where one is enough, of a kernel in chunks of so many rows.
std::size_t place_of(const Fault& fault, std::size_t token, std::size_t chunk_rows);

/// Of a value, by its name: no bug, and in 16 bits perhaps what the kernel does anyway. Of codes it is one,
/// and those at a tie are nobody's to tell.
inline bool is_rounding(std::string_view fault) {
  return fault.ends_with("_in_bf16") || fault.ends_with("_in_fp16") || fault.starts_with("codes_");
}

}  // namespace kda_check::hypotheses
