#include "numeric/philox.hpp"

#include "support/catch.hpp"

namespace philox_tests {

using kda_check::numeric::philox;
using Words = std::array<std::uint32_t, 4>;

TEST_CASE("Philox4x32-10 draws the known answers of its authors", "[philox]") {
  CHECK(philox(Words{}, {}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t ones = 0xffffffff;
  CHECK(philox(Words{ones, ones, ones, ones}, {ones, ones}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox(Words{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("what is drawn for an offset depends on both halves of the seed and of the offset", "[philox]") {
  CHECK(philox(0, 0) == 0x6627e8d5);
  CHECK(philox(0x299f31d0'a4093822, 0x85a308d3'243f6a88) ==
        philox(Words{0x243f6a88, 0x85a308d3, 0, 0}, {0xa4093822, 0x299f31d0})[0]);
}

}  // namespace philox_tests
