// The names of the intermediates of the chunk form, in the order they are computed (kda/problem/stages.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kda_check::kda {

enum class Stage : std::uint8_t {
  g_cumsum,
  Aqk,
  Akk_inv,
  u,
  w,
  qg,
  kg,
  h,
  v_new,
  // Of the backward pass.
  dAqk,
  dv_local,
  dh,
  dv,
  dw,
  dAkk
};
inline constexpr std::size_t stage_count = 15, forward_stage_count = 9;

}  // namespace kda_check::kda
