#pragma once

namespace kda_check {

inline constexpr char version[] = KDA_CHECK_VERSION;

}  // namespace kda_check
