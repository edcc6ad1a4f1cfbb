// The exponentials of an H100 80GB HBM3 (sm_90), from measurements on all 2^32 inputs (docs/arithmetic.md).
// ex2.approx is a table of what the hardware adds to the correctly rounded 2^f: -1, 0 or +1 units for each of
// the 2^23 fractions. It is compiled in, compressed (129 KB), and unpacked to two bits each at first use.
#include <lzma.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "numeric/elementary.hpp"
#include "numeric/exponentials.hpp"

asm(".section .rodata\n"
    ".global kda_check_h100_ex2_begin\n"
    ".global kda_check_h100_ex2_end\n"
    ".balign 16\n"
    "kda_check_h100_ex2_begin:\n"
    ".incbin \"" KDA_CHECK_H100_EX2_DELTA
    "\"\n"
    "kda_check_h100_ex2_end:\n"
    ".byte 0\n"
    ".previous\n");
extern "C" const std::uint8_t kda_check_h100_ex2_begin[], kda_check_h100_ex2_end[];

namespace kda_check::numeric::h100 {

namespace {

constexpr std::size_t fractions = std::size_t{1} << 23;

class Ex2Table {
 public:
  Ex2Table() : packed_(fractions / 16) {
    std::vector<std::uint8_t> bytes(fractions);
    std::uint64_t memory = std::numeric_limits<std::uint64_t>::max();
    std::size_t read = 0, written = 0;
    const lzma_ret result =
        lzma_stream_buffer_decode(&memory, 0, nullptr, kda_check_h100_ex2_begin, &read,
                                  static_cast<std::size_t>(kda_check_h100_ex2_end - kda_check_h100_ex2_begin),
                                  bytes.data(), &written, bytes.size());
    if (result != LZMA_OK || written != fractions)
      throw std::logic_error("the table of the H100's exponential does not unpack");
    for (std::size_t i = 0; i < fractions; ++i) packed_[i / 16] |= ((bytes[i] + 1u) & 3u) << i % 16 * 2;
  }
  const std::uint32_t* words() const { return packed_.data(); }

 private:
  std::vector<std::uint32_t> packed_;
};

/// M[i], between 1 and 2.
float significand(std::uint32_t i) {
  const auto exact = static_cast<float>(numeric::exp2(static_cast<double>(i) * 0x1p-23));
  const auto difference = static_cast<std::int32_t>(ex2_differences()[i / 16] >> i % 16 * 2 & 3) - 1;
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(exact) + difference);
}

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

}  // namespace

const std::uint32_t* ex2_differences() {
  static const Ex2Table table;
  return table.words();
}

float ex2_ftz(float x) {
  if (std::isnan(x)) return from_bits(0x7fff'ffff);
  const float magnitude = std::fabs(x);
  if (magnitude < 0x1p-126f) return 1.0f;
  if (x >= 128) return std::numeric_limits<float>::infinity();
  if (x < -127) return 0.0f;
  // Bits finer than 2^-23 are dropped; a negative x is then taken by one's complement.
  const auto a = static_cast<std::int64_t>(std::floor(static_cast<double>(magnitude) * 0x1p23));
  const std::int64_t n = x >= 0 ? a : (a & (fractions - 1)) == 0 ? -a : -a - 1;
  const float result =
      std::ldexp(significand(static_cast<std::uint32_t>(n & (fractions - 1))), static_cast<int>(n >> 23));
  return result < 0x1p-126f ? 0.0f : result;
}

float ex2(float x) {
  if (!(x < -126)) return ex2_ftz(x);
  const float root = ex2_ftz(x * 0.5f);
  return root * root;
}

float expf(float x) {
  float t = std::fma(x, from_bits(0x3bbb'989d), 0.5f);
  t = t > 0 ? (t < 1 ? t : 1.0f) : 0.0f;  // NaN gives 0
  // Rounded towards minus infinity: exact in double, then the largest float not above it.
  const double exact = static_cast<double>(t) * 252.0 + 12582913.0;
  auto r = static_cast<float>(exact);
  if (static_cast<double>(r) > exact) r = std::nextafter(r, 0.0f);
  const float s = r + -12583039.0f;
  float f = std::fma(x, from_bits(0x3fb8'aa3b), -s);
  f = std::fma(x, from_bits(0x32a5'7060), f);
  const float scale = from_bits(std::bit_cast<std::uint32_t>(r) << 23);
  return ex2_ftz(f) * scale;
}

float fast_expf(float x) { return ex2(x * from_bits(0x3fb8'aa3b)); }

}  // namespace kda_check::numeric::h100
