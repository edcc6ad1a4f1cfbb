#include "base/hash.hpp"

#include <fmt/format.h>

namespace kda_check {

void Hash::add(std::string_view word) {
  const auto step = [this](unsigned char byte) { state_ = (state_ ^ byte) * 0x100000001b3u; };
  for (const char letter : word) step(static_cast<unsigned char>(letter));
  step(0);  // so that words do not run together
}

std::uint64_t Hash::value() const {
  std::uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 33u)) * 0xff51afd7ed558ccdu;
  mixed = (mixed ^ (mixed >> 33u)) * 0xc4ceb9fe1a85ec53u;
  return mixed ^ (mixed >> 33u);
}

std::string Hash::text() const { return fmt::format("{:016x}", value()); }

}  // namespace kda_check
