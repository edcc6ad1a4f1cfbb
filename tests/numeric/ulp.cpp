#include "numeric/ulp.hpp"

#include <cmath>
#include <limits>

#include "numeric/rounding.hpp"
#include "support/catch.hpp"

namespace ulp_tests {

using namespace kda_check;
using namespace kda_check::numeric;

namespace {

template <class Storage>
Storage at(std::uint32_t bits) {
  return Storage{static_cast<std::uint16_t>(bits)};
}

template <class Storage>
bool is_nan(Storage x) {
  return std::isnan(widen(x));
}

}  // namespace

TEMPLATE_TEST_CASE("distance laws hold for all 65,536 values of a 16-bit format", "[ulp]", Bfloat16,
                   Float16) {
  const auto zero = at<TestType>(0), minus_zero = at<TestType>(0x8000);
  CHECK(ulp_distance(zero, minus_zero) == 0);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto x = at<TestType>(bits), negated = at<TestType>(bits ^ 0x8000u);
    if (is_nan(x)) continue;
    REQUIRE(ulp_distance(x, x) == 0);
    REQUIRE(ulp_distance(x, negated) == 2 * ulp_distance(x, zero));
    REQUIRE(ulp_distance(x, zero) == ulp_distance(zero, x));
    const auto next = at<TestType>(bits + 1);
    if ((bits & 0x7fff) != 0x7fff && !is_nan(next)) {
      // One step away from zero, up to and including the infinity.
      REQUIRE(ulp_distance(x, next) == 1);
      REQUIRE(ulp_distance(next, zero) == ulp_distance(x, zero) + 1);
    }
    // The distance is the number of values between: it agrees with the order of the numbers.
    REQUIRE((ordinal(x) > 0) == (widen(x) > 0));
    REQUIRE((ordinal(x) < 0) == (widen(x) < 0));
  }
}

TEST_CASE("largest finite to infinity is one step in every format", "[ulp]") {
  CHECK(ulp_distance(std::numeric_limits<double>::max(), HUGE_VAL) == 1);
  CHECK(ulp_distance(std::numeric_limits<float>::max(), HUGE_VALF) == 1);
  CHECK(ulp_distance(at<Bfloat16>(0x7f7f), at<Bfloat16>(0x7f80)) == 1);
  CHECK(ulp_distance(at<Float16>(0x7bff), at<Float16>(0x7c00)) == 1);
  CHECK(ulp_distance(HUGE_VAL, -HUGE_VAL) == 2 * ulp_distance(HUGE_VAL, 0.0));
}

TEMPLATE_TEST_CASE("the unit of every value is the gap above it", "[ulp]", Bfloat16, Float16) {
  const Format& format = format_for<TestType>;
  for (std::uint32_t bits = 0; bits < 0x7fff; ++bits) {
    const auto x = at<TestType>(bits), next = at<TestType>(bits + 1);
    if (!std::isfinite(widen(next))) break;
    REQUIRE(unit_in_last_place(format, exponent_of(widen(x))) == widen(next) - widen(x));
  }
}

TEMPLATE_TEST_CASE("every correctly rounded result is within half a unit, every neighbour is not better",
                   "[ulp]", Bfloat16, Float16) {
  const Format& format = format_for<TestType>;
  for (std::uint32_t bits = 1; bits < 0x7fff; ++bits) {
    const double below = widen(at<TestType>(bits)), above = widen(at<TestType>(bits + 1));
    if (!std::isfinite(above)) break;
    for (const double share : {0.0, 0.25, 0.5, 0.75}) {
      const double exact = below + share * (above - below);
      const double rounded = widen(round_to<TestType>(exact));
      REQUIRE(ulp_error(format, rounded, {exact, 0.0}) <= 0.5);
      REQUIRE(ulp_error(format, below, {exact, 0.0}) == share);
      REQUIRE(ulp_error(format, -below, {-exact, 0.0}) == share);
    }
  }
}

TEST_CASE("the error of a double sees the low part of the exact value", "[ulp]") {
  const Format& fp64 = format_of(DType::fp64);
  CHECK(ulp_error(fp64, 1.0, {1.0, 0x1p-55}) == 0.125);
  CHECK(ulp_error(fp64, 1.0, {1.0, -0x1p-55}) ==
        0.25);  // just below a power of two the unit is half as large
  CHECK(exponent_of(DoubleDouble{1.0, -0x1p-60}) == -1);
  CHECK(exponent_of(DoubleDouble{-1.0, 0x1p-60}) == -1);
  CHECK(exponent_of(DoubleDouble{1.0, 0x1p-60}) == 0);
}

TEST_CASE("the scaled error is immune to cancellation", "[ulp]") {
  const Format& fp32 = format_of(DType::fp32);
  // 1e-6 left of terms of size 1, wrong in the last place of those terms.
  const double exact = 1e-6, got = exact + 0x1p-23;
  CHECK(ulp_error(fp32, got, {exact, 0}) > 1e5);
  CHECK(scaled_ulp(fp32, got, {exact, 0}, 1.0) == Approx(1.0));
  CHECK(scaled_ulp(fp32, got, {exact, 0}, 0.0) ==
        ulp_error(fp32, got, {exact, 0}));  // never below the value itself
}

TEST_CASE("the unit does not shrink below the smallest exponent", "[ulp]") {
  CHECK(unit_in_last_place(format_of(DType::fp16), -40) == 0x1p-24);
  CHECK(unit_in_last_place(format_of(DType::fp32), -1000) == 0x1p-149);
  CHECK(unit_in_last_place(format_of(DType::fp64), exponent_of(0.0)) == 0x1p-1074);
  CHECK(ulp_error(format_of(DType::fp16), 0x1p-24, {0.0, 0.0}) == 1.0);
}

}  // namespace ulp_tests
