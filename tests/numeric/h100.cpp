// The approximate functions of an H100: each unit on every fraction against the rules written out in
// integers, every function against a sum over 8.4 million patterns that a model in another language has too,
// what is known of special values, and the errors that NVIDIA states (PTX ISA 9.1, 9.7.3).
#include "numeric/h100.hpp"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/threads/parallel.hpp"
#include "numeric/ulp.hpp"
#include "support/catch.hpp"
#include "support/h100_rules.hpp"
#include "support/random.hpp"
#include "support/sampled.hpp"

namespace h100_tests {

using namespace kda_check;
namespace h100 = numeric::h100;
using test::bits_of, test::from_bits;

namespace {

const float infinity = HUGE_VALF, not_a_number = std::nanf(""), subnormal = 0x1p-130f,
            largest = 0x1.fffffep127f;

constexpr std::size_t fractions = std::size_t{1} << 23;

/// Sums what `of` finds for runs of `each` of `count` items, side by side.
template <class T>
T total(std::size_t count, const std::function<T(std::size_t first, std::size_t last)>& of) {
  constexpr std::size_t each = std::size_t{1} << 16;
  std::vector<T> found((count + each - 1) / each);
  parallel_for(found.size(), available_threads(), [&](std::size_t item, int) {
    found[item] = of(item * each, std::min(count, (item + 1) * each));
  });
  T sum = 0;
  for (const T part : found) sum += part;
  return sum;
}
std::size_t how_many(std::size_t count, const std::function<bool(std::size_t)>& holds) {
  return total<std::size_t>(count, [&](std::size_t first, std::size_t last) {
    std::size_t sum = 0;
    for (std::size_t i = first; i < last; ++i) sum += holds(i);
    return sum;
  });
}

/// 2^exponent (1 + i / 2^23).
float at(int exponent, std::size_t i) {
  return from_bits(static_cast<std::uint32_t>(exponent + 127) << 23 | static_cast<std::uint32_t>(i));
}

float ruled_lg2(float x, int exponent, std::size_t i) {
  if (x == 1) return 0;
  const std::int64_t sum =
      exponent * (std::int64_t{1} << 40) + test::value_of(test::lg2_unit, static_cast<std::int64_t>(i));
  const float magnitude = test::first_bits(std::abs(sum) / 16 * 16, 0);
  return sum < 0 ? -magnitude : magnitude;
}

float ruled_tanh(int exponent, std::size_t i) {
  constexpr int kept[] = {17, 17, 17, 18, 18, 19, 19, 19, 20, 21, 20};
  std::int64_t segment = 0;
  for (int octave = -8; octave < exponent; ++octave) segment += 1 << (kept[octave + 8] - 17);
  return test::first_bits(
      test::value_of(test::tanh_unit,
                     (segment << 17) + static_cast<std::int64_t>(i >> (23 - kept[exponent + 8]))),
      0);
}

/// The sum of f's bits at every 509th pattern, each times an odd number of its own.
std::uint64_t bits_summed(const std::function<float(std::uint32_t pattern)>& f) {
  return total<std::uint64_t>(((std::uint64_t{1} << 32) + 508) / 509,
                              [&](std::size_t first, std::size_t last) {
                                std::uint64_t sum = 0;
                                for (std::uint64_t i = first; i < last; ++i)
                                  sum += (2 * i + 1) * bits_of(f(static_cast<std::uint32_t>(i * 509)));
                                return sum;
                              });
}

/// The largest of error(x) over all positive normal x in [from, to), every `step`th.
double worst(float from, float to, std::uint32_t step, const std::function<double(float)>& error) {
  const std::uint32_t first = bits_of(from);
  const std::size_t count = (bits_of(to) - first) / step;
  std::vector<double> found(256);
  parallel_for(found.size(), available_threads(), [&](std::size_t item, int) {
    for (std::size_t i = item; i < count; i += found.size())
      found[item] = std::max(found[item], error(from_bits(first + static_cast<std::uint32_t>(i) * step)));
  });
  return *std::max_element(found.begin(), found.end());
}
double relative(float got, double exact) { return std::fabs(static_cast<double>(got) / exact - 1); }
double units(float got, double exact) {
  return numeric::ulp_error(numeric::format_of(numeric::DType::fp32), static_cast<double>(got),
                            numeric::DoubleDouble{exact, 0.0});
}

}  // namespace

TEST_CASE("a unit's quadratics give the bits of the rules on any of the 2^23 fractions", "[h100]") {
  using namespace test;
  const Sampled sample;
  INFO(sample.text());
  const auto wrong = [&](const std::function<float(std::size_t)>& ours,
                         const std::function<float(std::size_t)>& rules) {
    return how_many(fractions,
                    [&](std::size_t i) { return sample.has(i) && bits_of(ours(i)) != bits_of(rules(i)); });
  };
  const auto n = [](std::size_t i) { return static_cast<std::int64_t>(i); };
  CHECK(wrong([](std::size_t i) { return h100::ex2_ftz(static_cast<float>(i) * 0x1p-23f); },
              [&](std::size_t i) { return first_bits(value_of(ex2_unit, n(i)), 0); }) == 0);
  CHECK(wrong([](std::size_t i) { return h100::rcp_ftz(at(0, i)); },
              [&](std::size_t i) { return first_bits(value_of(rcp_unit, n(i)), 0); }) == 0);
  for (const int exponent : {0, 1}) {
    const auto place = [exponent](std::size_t i) {
      return static_cast<std::int64_t>(i) | std::int64_t{exponent} << 23;
    };
    CHECK(wrong([&](std::size_t i) { return h100::sqrt_ftz(at(exponent, i)); },
                [&](std::size_t i) { return first_bits(value_of(sqrt_unit, place(i)), 0); }) == 0);
    CHECK(wrong([&](std::size_t i) { return h100::rsqrt_ftz(at(exponent, i)); },
                [&](std::size_t i) {
                  return place(i) == 0 ? 1 : first_bits(value_of(rsqrt_unit, place(i)), 0);
                }) == 0);
  }
  for (const int exponent : {-127 + 1, -1, 0, 6})
    CHECK(wrong([&](std::size_t i) { return h100::lg2_ftz(at(exponent, i)); },
                [&](std::size_t i) { return ruled_lg2(at(exponent, i), exponent, i); }) == 0);
  for (int exponent = -8; exponent <= 2; ++exponent)
    CHECK(wrong([&](std::size_t i) { return h100::tanh(-at(exponent, i)); },
                [&](std::size_t i) { return -ruled_tanh(exponent, i); }) == 0);
}

TEST_CASE("the H100's approximate functions keep their bits over all of fp32", "[h100]") {
  const auto sum_of = [](float (*f)(float)) {
    return bits_summed([f](std::uint32_t pattern) { return f(from_bits(pattern)); });
  };
  CHECK(sum_of(h100::ex2_ftz) == 0x48cfcacbb2b7b0bbu);
  CHECK(sum_of(h100::ex2) == 0x494c6148ef80b70fu);
  CHECK(sum_of(h100::rcp_ftz) == 0x7f5b7c57f02a0899u);
  CHECK(sum_of(h100::rcp) == 0xa1ed5ddcea411f5bu);
  CHECK(sum_of(h100::rsqrt_ftz) == 0x979e941b35ead901u);
  CHECK(sum_of(h100::rsqrt) == 0x6d2a63ade0ff3923u);
  CHECK(sum_of(h100::sqrt_ftz) == 0x3b0f6fb781f6d7b8u);
  CHECK(sum_of(h100::sqrt) == 0x3d122b924f5751beu);
  CHECK(sum_of(h100::lg2_ftz) == 0x21fe62f9b0b88941u);
  CHECK(sum_of(h100::lg2) == 0xf5c231a0039abd4du);
  CHECK(sum_of(h100::tanh) == 0xc4b33b3e32606f2u);
  // Divisors are every 509th pattern, dividends some other one.
  const auto quotients = [](float (*f)(float, float)) {
    return bits_summed(
        [f](std::uint32_t pattern) { return f(from_bits(pattern * 2654435761u), from_bits(pattern)); });
  };
  CHECK(quotients(h100::div_full) == 0xfc3d02bc7e4348bdu);
  CHECK(quotients(h100::div_full_ftz) == 0x437c649a4fcb758du);
}

TEST_CASE("2^f of an H100 is as often not correctly rounded as was counted there, and then by one unit",
          "[h100]") {
  const auto steps = [](std::size_t i) {
    const auto rounded = static_cast<float>(std::exp2(static_cast<double>(i) * 0x1p-23));
    return numeric::ulp_distance(h100::ex2_ftz(static_cast<float>(i) * 0x1p-23f), rounded);
  };
  CHECK(how_many(fractions, [&](std::size_t i) { return steps(i) == 1; }) == 3262733);
  CHECK(how_many(fractions, [&](std::size_t i) { return steps(i) > 1; }) == 0);
  // One's complement: 2^-f is not half of 2^(1-f) more often than not.
  CHECK(how_many(fractions, [](std::size_t i) {
          const float f = static_cast<float>(i) * 0x1p-23f;
          return h100::ex2_ftz(-f) != h100::ex2_ftz(1 - f) / 2;
        }) == 7665501);
}

TEST_CASE("special values of the H100's approximate functions are those of the PTX ISA", "[h100]") {
  struct Row {
    float (*function)(float);
    float of_minus_infinity, of_minus_one, of_minus_subnormal, of_minus_zero, of_zero, of_subnormal,
        of_infinity;
  };
  const float nan = not_a_number;
  const Row rows[] = {
      {h100::ex2_ftz, 0.0f, 0.5f, 1.0f, 1.0f, 1.0f, 1.0f, infinity},
      {h100::ex2, 0.0f, 0.5f, 1.0f, 1.0f, 1.0f, 1.0f, infinity},
      {h100::rcp_ftz, -0.0f, -1.0f, -infinity, -infinity, infinity, infinity, 0.0f},
      {h100::rcp, -0.0f, -1.0f, -infinity, -infinity, infinity, infinity, 0.0f},
      {h100::rsqrt_ftz, nan, nan, -infinity, -infinity, infinity, infinity, 0.0f},
      {h100::rsqrt, nan, nan, nan, -infinity, infinity, 0x1p65f, 0.0f},
      {h100::sqrt_ftz, nan, nan, -0.0f, -0.0f, 0.0f, 0.0f, infinity},
      {h100::sqrt, nan, nan, nan, -0.0f, 0.0f, 0x1p-65f, infinity},
      {h100::lg2_ftz, nan, nan, -infinity, -infinity, -infinity, -infinity, infinity},
      {h100::lg2, nan, nan, nan, -infinity, -infinity, -130.0f, infinity},
      {h100::cuda_logf, nan, nan, nan, -infinity, -infinity, static_cast<float>(-130 * std::log(2.0)),
       infinity},
      {h100::tanh, -1.0f, h100::tanh(-1.0f), -subnormal, -0.0f, 0.0f, subnormal, 1.0f},
  };
  for (const Row& row : rows) {
    INFO("row " << &row - rows);
    const auto gives = [&](float x, float wanted) {
      INFO("of " << x);
      CHECK(bits_of(row.function(x)) == (std::isnan(wanted) ? 0x7fffffffu : bits_of(wanted)));
    };
    gives(not_a_number, nan);
    gives(-not_a_number, nan);
    gives(-infinity, row.of_minus_infinity);
    gives(-1.0f, row.of_minus_one);
    gives(-subnormal, row.of_minus_subnormal);
    gives(-0.0f, row.of_minus_zero);
    gives(0.0f, row.of_zero);
    gives(subnormal, row.of_subnormal);
    gives(infinity, row.of_infinity);
  }
  CHECK(bits_of(h100::lg2_ftz(1.0f)) == 0);
  CHECK(bits_of(h100::lg2(1.0f)) == 0);
  CHECK(bits_of(h100::cuda_logf(1.0f)) == 0);
}

TEST_CASE("reciprocals of an H100 are flushed with .ftz and gradual without", "[h100]") {
  CHECK(h100::rcp_ftz(0x1p126f) == 0x1p-126f);
  CHECK(bits_of(h100::rcp_ftz(-0x1.000002p126f)) == 0x80000000u);
  CHECK(bits_of(h100::rcp_ftz(largest)) == 0);
  CHECK(h100::rcp(0x1p127f) == 0x1p-127f);
  CHECK(h100::rcp(-0x1p-127f) == -0x1p127f);
  CHECK(h100::rcp(0x1p-129f) == infinity);
}

TEST_CASE("rsqrt of an H100 is exact at powers of 4", "[h100]") {
  for (int half = -74; half <= 63; ++half)
    CHECK(h100::rsqrt(std::ldexp(1.0f, 2 * half)) == std::ldexp(1.0f, -half));
}

TEST_CASE("tanh of an H100 is the identity below 2^-8 and 1 from 8 on", "[h100]") {
  for (std::uint32_t bits = 0; bits < bits_of(0x1p-8f); bits += 1021) {
    REQUIRE(bits_of(h100::tanh(from_bits(bits))) == bits);
    REQUIRE(bits_of(h100::tanh(-from_bits(bits))) == (bits | 0x80000000u));
  }
  for (const float x : {8.0f, 8.5f, 1e10f, largest}) {
    CHECK(h100::tanh(x) == 1);
    CHECK(h100::tanh(-x) == -1);
  }
  CHECK(h100::tanh(0x1.fffffep2f) < 1);
}

TEST_CASE("division of an H100 scales what its reciprocal cannot take", "[h100]") {
  CHECK(h100::div_full(0x1p127f, 0x1.8p126f) == h100::rcp_ftz(0x1.8p124f) * 0x1p125f);
  CHECK(h100::div_full(0x1p-140f, 0x1p-130f) == 0x1p-10f);
  CHECK(h100::div_full_ftz(0x1p-120f, 0x1p-130f) == infinity);  // the divisor is flushed
  CHECK(bits_of(h100::div_full_ftz(-0x1p-130f, 1.0f)) == 0x80000000u);
  CHECK(h100::div_full_ftz(0x1p127f, 0x1p127f) == 1);
  CHECK(bits_of(h100::div_full_ftz(0x1p-100f, 0x1p30f)) == 0);
  CHECK(h100::div_full(0x1p-100f, 0x1p30f) == 0x1p-130f);
  for (const auto& [a, b] : {std::pair{0.0f, 0.0f}, {infinity, -infinity}, {1.0f, not_a_number}}) {
    CHECK(bits_of(h100::div_full(a, b)) == 0x7fffffffu);
    CHECK(bits_of(h100::div_full_ftz(a, b)) == 0x7fffffffu);
  }
  CHECK(h100::div_full(1.0f, infinity) == 0);
  CHECK(h100::div_full(-1.0f, 0.0f) == -infinity);
}

TEST_CASE("the H100's approximate functions err no more than NVIDIA states", "[h100]") {
  const auto wide = [](float x) { return static_cast<double>(x); };
  CHECK(worst(1.0f, 2.0f, 1, [&](float x) { return units(h100::rcp_ftz(x), 1 / wide(x)); }) < 1);
  CHECK(worst(0x1p-149f, largest, 1009,
              [&](float x) { return x < 0x1p-128f ? 0 : units(h100::rcp(x), 1 / wide(x)); }) <= 1);
  CHECK(worst(1.0f, 4.0f, 1, [&](float x) { return relative(h100::rsqrt_ftz(x), 1 / std::sqrt(wide(x))); }) <
        std::exp2(-22.9));
  CHECK(worst(1.0f, 4.0f, 1, [&](float x) { return relative(h100::sqrt_ftz(x), std::sqrt(wide(x))); }) <=
        std::exp2(-23.0));
  CHECK(worst(0x1.000002p-1f, 2.0f, 1,
              [&](float x) { return std::fabs(wide(h100::lg2_ftz(x)) - std::log2(wide(x))); }) < 0x1p-22);
  CHECK(worst(2.0f, largest, 509, [&](float x) { return relative(h100::lg2_ftz(x), std::log2(wide(x))); }) <
        0x1p-22);
  CHECK(worst(0x1p-149f, 0.5f, 509, [&](float x) { return relative(h100::lg2(x), std::log2(wide(x))); }) <
        0x1p-22);
  CHECK(worst(0x1p-30f, 128.0f, 101, [&](float x) { return units(h100::ex2(x), std::exp2(wide(x))); }) < 2.5);
  CHECK(worst(0x1p-30f, 149.0f, 101, [&](float x) { return units(h100::ex2(-x), std::exp2(-wide(x))); }) <
        2.5);
  CHECK(worst(0x1p-126f, 20.0f, 101, [&](float x) { return relative(h100::tanh(x), std::tanh(wide(x))); }) <
        0x1p-11);
  CHECK(worst(0x1p-149f, largest, 509,
              [&](float x) { return units(h100::cuda_logf(x), std::log(wide(x))); }) <= 1);
  test::Random random(3);
  double quotient = 0;
  for (int i = 0; i < 1 << 21; ++i) {
    const float a = from_bits(static_cast<std::uint32_t>(random.bits())),
                b = from_bits(static_cast<std::uint32_t>(random.bits()));
    const double exact = wide(a) / wide(b);
    if (std::fabs(exact) < 0x1p128 && b != 0 && std::isfinite(b))
      quotient = std::max(quotient, units(h100::div_full(a, b), exact));
  }
  CHECK(quotient < 2.5);
}

}  // namespace h100_tests
