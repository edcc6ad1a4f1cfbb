// How the token forms keep a state between tokens: data, an axis of the arithmetic (docs/arithmetic.md,
// "stored").
#pragma once

#include <cstdint>

namespace kda_check::kda {

/// In the order of numeric::stored_formats.
enum class StateFormat : std::uint8_t { fp32, bf16, fp16, e4m3, int8 };

/// The elements of a head's state [K][V] that share a scale.
enum class StateScale : std::uint8_t {
  none,    ///< no scale
  row,     ///< those of one k
  column,  ///< those of one v
  head,    ///< all
};

enum class StateRounding : std::uint8_t {
  nearest,
  stochastic,  ///< up as often as the number is close to the upper one
  feedback,    ///< to nearest; what that leaves is added before the next
};

struct StoredState {
  StateFormat format = StateFormat::fp32;
  StateScale scale = StateScale::none;
  bool power_of_two = false;  ///< scales are
  StateRounding rounding = StateRounding::nearest;
  std::uint64_t seed = 0;  ///< of StateRounding::stochastic

  bool operator==(const StoredState&) const = default;
};

}  // namespace kda_check::kda
