// Names for several words of --arithmetic together, one table: kernels that people run, and what is known of
// how near they come to them. docs/arithmetic.md has more of some.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace kda_check::kda {

struct Preset {
  std::string_view name;
  std::string_view variant;  ///< that is the kernel under it; empty: any
  std::string_view what;     ///< whose arithmetic it is
  /// The source it was read in: repository, commit, date of the commit where a copy says it. Empty: ours.
  std::string_view source;
  /// How that is known, its first words one of: "a definition", "proven" (no bit differs), "close"
  /// (measured), "from source" (not measured).
  std::string_view evidence;
  std::string_view
      words;  ///< of --arithmetic, with spaces between them; what it does not name it leaves alone
  std::size_t chunk_size = 0;  ///< of the kernel; 0: that of the problem
};

std::span<const Preset> presets();
/// That must be there.
const Preset& preset_named(std::string_view name);

}  // namespace kda_check::kda
