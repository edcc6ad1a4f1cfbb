// How an answer in chunks says that it computes, where that is not as most do and twins of the usual kinds
// err otherwise (docs/twins.md, "Who the twins are").
#pragma once

#include <cstddef>

#include "engine/answered.hpp"
#include "kda/arithmetic/presets.hpp"

namespace kda_check::engine {

struct Manner {
  const kda::Preset* kernel = nullptr;  ///< rounds its intermediates where this known one does
  kda::Arithmetic orders;               ///< of operations; all else in it is as usual
  bool scales_before = false;           ///< scale=before
  kda::Heads heads = kda::Heads::grouped;

  bool operator==(const Manner&) const = default;
  /// But for what is done around the kernel.
  bool is_usual() const { return kernel == nullptr && orders == kda::Arithmetic{}; }
  std::size_t chunk_size() const { return kernel == nullptr ? 0 : kernel->chunk_size; }  ///< 0: the problem's
  /// Gives an arithmetic of the usual kind what is special here.
  void take_over(kda::Arithmetic& arithmetic) const;
  /// What is done around the kernel, which every twin has, too.
  void surround(kda::Arithmetic& arithmetic) const;
};

/// Roundings are taken over from known kernels alone: who rounds where nobody is known to is judged by those
/// who do not.
Manner manner_of(const Answered& answer, const kda::Problem& problem);

}  // namespace kda_check::engine
