#include "numeric/rounding.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace rounding_tests {

using namespace kda_check;
using namespace kda_check::numeric;

namespace {

template <class Storage>
Storage from_bits(std::uint32_t bits) {
  return Storage{static_cast<std::uint16_t>(bits)};
}

template <class Storage>
bool is_nan(Storage x) {
  return std::isnan(widen(x));
}

/// MPFR's rounding to a format, subnormals and overflow included: an independent judge.
template <class Storage>
double judged(const test::Big& exact) {
  const Format& format = format_for<Storage>;
  const mpfr_exp_t old_min = mpfr_get_emin(), old_max = mpfr_get_emax();
  mpfr_t value;
  mpfr_init2(value, format.precision);
  const int ternary = mpfr_set(value, exact.raw(), MPFR_RNDN);
  mpfr_set_emin(format.min_exponent - format.precision + 2);
  mpfr_set_emax(format.max_exponent + 1);
  const int checked = mpfr_check_range(value, ternary, MPFR_RNDN);
  mpfr_subnormalize(value, checked, MPFR_RNDN);
  mpfr_set_emin(old_min);
  mpfr_set_emax(old_max);
  const double result = mpfr_get_d(value, MPFR_RNDN);
  mpfr_clear(value);
  return result;
}

}  // namespace

TEMPLATE_TEST_CASE("every 16-bit value survives widening and rounding back", "[rounding]", Bfloat16,
                   Float16) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto x = from_bits<TestType>(bits);
    if (is_nan(x)) {
      REQUIRE(is_nan(round_to<TestType>(widen(x))));
    } else {
      REQUIRE(round_to<TestType>(widen(x)).bits == bits);
      REQUIRE(round_to<TestType>(DoubleDouble{widen(x), 0.0}).bits == bits);
    }
  }
}

TEMPLATE_TEST_CASE("between every two neighbours of a 16-bit format the middle decides and ties go to even",
                   "[rounding]", Bfloat16, Float16) {
  const std::uint32_t infinity = static_cast<std::uint32_t>(round_to<TestType>(HUGE_VAL).bits);
  for (std::uint32_t bits = 0; bits + 1 < infinity; ++bits) {
    const double below = widen(from_bits<TestType>(bits)), above = widen(from_bits<TestType>(bits + 1));
    const double middle = (below + above) / 2;  // exact in double
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    REQUIRE(round_to<TestType>(middle).bits == even);
    REQUIRE(round_to<TestType>(std::nextafter(middle, 0)).bits == bits);
    REQUIRE(round_to<TestType>(std::nextafter(middle, HUGE_VAL)).bits == bits + 1);
    // A double-double is on either side by less than a double can show.
    const double crumb = middle * 0x1p-80;
    REQUIRE(round_to<TestType>(DoubleDouble{middle, -crumb}).bits == bits);
    REQUIRE(round_to<TestType>(DoubleDouble{middle, crumb}).bits == bits + 1);
    REQUIRE(round_to<TestType>(-middle).bits == (even | 0x8000u));
    REQUIRE(round_to<TestType>(DoubleDouble{-middle, crumb}).bits == (bits | 0x8000u));
  }
}

TEMPLATE_TEST_CASE("overflow starts half a step above the largest number", "[rounding]", Bfloat16, Float16) {
  const Format& format = format_for<TestType>;
  const double largest = (2 - std::ldexp(1.0, 1 - format.precision)) * std::ldexp(1.0, format.max_exponent);
  const double edge = (2 - std::ldexp(1.0, -format.precision)) * std::ldexp(1.0, format.max_exponent);
  CHECK(widen(round_to<TestType>(largest)) == largest);
  CHECK(widen(round_to<TestType>(std::nextafter(edge, 0))) == largest);
  CHECK(std::isinf(widen(round_to<TestType>(edge))));
  CHECK(widen(round_to<TestType>(DoubleDouble{edge, -1e-20})) == largest);
  CHECK(widen(round_to<TestType>(-HUGE_VAL)) == -HUGE_VAL);
  CHECK(std::isinf(widen(round_to<TestType>(std::numeric_limits<double>::max()))));
  CHECK(round_to<TestType>(std::numeric_limits<double>::denorm_min()).bits == 0);
  CHECK(round_to<TestType>(-std::numeric_limits<double>::denorm_min()).bits == 0x8000u);
}

TEMPLATE_TEST_CASE("a double-double rounds as MPFR rounds the same number", "[rounding]", float, Bfloat16,
                   Float16) {
  test::Random random(3);
  for (int i = 0; i < 200'000; ++i) {
    const double hi = std::ldexp(random.uniform(1, 2), static_cast<int>(random.below(60)) - 40) *
                      (random.below(2) ? 1 : -1);
    // Half of them close to a tie of the format.
    const double near = random.below(2) ? widen(round_to<TestType>(hi)) *
                                              (1 + std::ldexp(1.0, -format_for<TestType>.precision))
                                        : hi;
    if (!std::isfinite(near)) continue;  // hi itself was beyond the format
    const DoubleDouble x = two_sum(near, near * 0x1p-54 * random.uniform(-1, 1));
    REQUIRE(widen(round_to<TestType>(x)) == judged<TestType>(test::Big(x)));
  }
}

TEST_CASE("rounding through fp32 first is wrong for some sums, rounding once is not", "[rounding]") {
  // 1 + 2^-8 is a tie of bfloat16; a crumb below fp32's reach decides it.
  const DoubleDouble x{1 + 0x1p-8, 0x1p-40};
  const float through_fp32 = static_cast<float>(x.hi + x.lo);
  CHECK(widen(round_to<Bfloat16>(static_cast<double>(through_fp32))) == 1.0);
  CHECK(widen(round_to<Bfloat16>(x)) == 1 + 0x1p-7);
}

TEST_CASE("cast points round as the conversions do", "[rounding]") {
  test::Random random(5);
  const auto check = [](float x) {
    if (std::isnan(x)) {
      REQUIRE(std::isnan(through_bf16(x)));
      REQUIRE(std::isnan(through_fp16(x)));
      return;
    }
    REQUIRE(through_bf16(x) == widen_to_float(round_to<Bfloat16>(static_cast<double>(x))));
    REQUIRE(std::signbit(through_bf16(x)) == std::signbit(x));
    REQUIRE(through_fp16(x) == widen_to_float(round_to<Float16>(static_cast<double>(x))));
    REQUIRE(std::signbit(through_fp16(x)) == std::signbit(x));
  };
  for (int i = 0; i < 4'000'000; ++i) check(std::bit_cast<float>(static_cast<std::uint32_t>(random.bits())));
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float half = widen_to_float(Float16{static_cast<std::uint16_t>(bits)});
    for (const float x : {half, std::nextafterf(half, -HUGE_VALF), std::nextafterf(half, HUGE_VALF)})
      check(x);
    const float brain = widen_to_float(Bfloat16{static_cast<std::uint16_t>(bits)});
    for (const float x : {brain, std::nextafterf(brain, -HUGE_VALF), std::nextafterf(brain, HUGE_VALF)})
      check(x);
  }
}

TEST_CASE("tf32 keeps ten stored bits and cuts the others off", "[rounding]") {
  CHECK(through_tf32(1 + 0x1p-10f) == 1 + 0x1p-10f);
  CHECK(through_tf32(1 + 0x1p-11f) == 1.0f);
  CHECK(through_tf32(1 + 0x1p-10f + 0x1.ffep-11f) == 1 + 0x1p-10f);
  CHECK(through_tf32(-1.9999999f) == -(2 - 0x1p-10f));
  CHECK(through_tf32(HUGE_VALF) == HUGE_VALF);
}

}  // namespace rounding_tests
