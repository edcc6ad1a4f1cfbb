// Layouts that a kernel may take an input of tokens to have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kda/problem/problem.hpp"

namespace kda_check::hypotheses {

/// What a token has, by the tensor that it is read from.
enum class TokenInput : std::uint8_t { query, key, value, gate, beta };
inline constexpr std::string_view token_inputs[] = {"q", "k", "v", "g", "beta"};

/// Of a tensor [B][T][heads][width], and what its reader may take for these.
struct InputAxes {
  std::size_t B, T, heads, width, other_heads, other_width, chunk;
};
InputAxes axes_of(const kda::Dimensions& dimensions, TokenInput input, std::size_t chunk);
/// Another layout of such a tensor.
struct InputLayout {
  std::string_view name;
  bool (*differs)(const InputAxes& axes);
  std::array<std::uint8_t, 4> order{};  ///< of the axes
  bool is_stored = false;  ///< the tensor has it and is read as if it had not, not the other way round
  std::size_t (*other)(const InputAxes& axes, std::size_t batch, std::size_t t, std::size_t head,
                       std::size_t channel) = nullptr;  ///< of what is no order of axes

  /// Where element [batch][t][head][channel] is read.
  std::size_t element(const InputAxes& axes, std::size_t batch, std::size_t t, std::size_t head,
                      std::size_t channel) const;
};
std::span<const InputLayout> input_layouts();

}  // namespace kda_check::hypotheses
