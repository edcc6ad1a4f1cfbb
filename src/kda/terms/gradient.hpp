// The names of the gradients, in the order of reports (kda/problem/gradients.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kda_check::kda {

enum class Gradient : std::uint8_t {
  dq,
  dk,
  dv,
  dg,
  dbeta,
  dinitial_state,
  dA_log,
  ddt_bias,
  derase,
  dwrite
};
inline constexpr std::size_t gradient_count = 10;

}  // namespace kda_check::kda
