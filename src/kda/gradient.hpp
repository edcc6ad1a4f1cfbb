// The names of the gradients, in the order of reports (kda/gradients.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kda_check::kda {

enum class Gradient : std::uint8_t { dq, dk, dv, dg, dbeta, dinitial_state, dA_log, ddt_bias };
inline constexpr std::size_t gradient_count = 8;

}  // namespace kda_check::kda
