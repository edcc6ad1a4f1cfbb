// The exponential axis in fp32. What an H100 computes is held to the measured rules, written out once more
// and in integers; the others are held to exp in double precision and to MPFR.
#include "numeric/exponentials.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/threads/parallel.hpp"
#include "numeric/h100.hpp"
#include "numeric/ulp.hpp"
#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/h100_rules.hpp"
#include "support/random.hpp"
#include "support/sampled.hpp"

namespace exponentials_tests {

using namespace kda_check;
using numeric::Exponential;
using test::bits_of, test::from_bits, test::ruled_ex2_ftz;

namespace {

float ruled_ex2(float x) {
  if (!(x < -126.0f)) return ruled_ex2_ftz(x);
  const float r = ruled_ex2_ftz(x / 2);
  return r * r;
}

/// expf of CUDA. The sum that is rounded towards minus infinity lies where floats are the integers.
float ruled_expf(float x) {
  float t = std::fma(x, from_bits(0x3bbb989du), 0.5f);
  if (std::isnan(t) || t < 0) t = 0;
  if (t > 1) t = 1;
  const auto r = static_cast<float>(12582913 + static_cast<int>(std::floor(252.0 * static_cast<double>(t))));
  const float s = r - 12583039.0f;
  float f = std::fma(x, from_bits(0x3fb8aa3bu), -s);
  f = std::fma(x, from_bits(0x32a57060u), f);
  return ruled_ex2_ftz(f) * from_bits(bits_of(r) << 23);
}

float ruled_fast_expf(float x) {
  const float product = x * from_bits(0x3fb8aa3bu);
  return ruled_ex2(product);
}

float kind(Exponential exponential, float x) {
  float y;
  numeric::exponentials(exponential, &x, &y, 1);
  return y;
}
float cuda(float x) { return kind(Exponential::cuda, x); }
float cuda_fast(float x) { return kind(Exponential::cuda_fast, x); }

struct Ruled {
  const char* name;
  float (*ours)(float);
  float (*rules)(float);
};
constexpr Ruled ruled[] = {{"ex2.approx.ftz", numeric::h100::ex2_ftz, ruled_ex2_ftz},
                           {"ex2.approx", numeric::h100::ex2, ruled_ex2},
                           {"exponential=cuda", cuda, ruled_expf},
                           {"exponential=cuda-fast", cuda_fast, ruled_fast_expf}};

/// Same bits; any NaN counts as any other but for ex2, whose NaN is prescribed.
bool agree(const Ruled& row, float x) {
  const float ours = row.ours(x), rules = row.rules(x);
  if (row.ours != numeric::h100::ex2_ftz && std::isnan(rules)) return std::isnan(ours);
  return bits_of(ours) == bits_of(rules);
}

/// Error in units of the last place of exp(x), which is constant below 2^-126.
double ulps_off(float got, float x) {
  const double exact = std::exp(static_cast<double>(x));
  return numeric::ulp_error(numeric::format_of(numeric::DType::fp32), static_cast<double>(got),
                            numeric::DoubleDouble{exact, 0.0});
}

/// The largest error over floats in [from, to], every `step`th bit pattern.
double worst_in(Exponential exponential, float from, float to, std::uint32_t step) {
  std::uint32_t first = bits_of(from), last = bits_of(to);
  if (first > last) std::swap(first, last);
  double worst = 0;
  for (std::uint32_t bits = first; bits <= last; bits += step)
    worst = std::max(worst, ulps_off(kind(exponential, from_bits(bits)), from_bits(bits)));
  return worst;
}

const float infinity = HUGE_VALF, not_a_number = std::nanf("");

}  // namespace

TEST_CASE("the H100's exponentials follow the measured rules on 2^24 inputs over all of fp32",
          "[exponential]") {
  // Of every 256 consecutive bit patterns one, at a place of its own; of those a sample.
  const test::Sampled sample;
  INFO(sample.text());
  constexpr std::size_t items = 256, each = (std::size_t{1} << 24) / items;
  std::size_t wrong[std::size(ruled)] = {};
  std::vector<std::size_t> found(items * std::size(ruled));
  parallel_for(items, available_threads(), [&](std::size_t item, int) {
    test::Random random(item);
    for (std::size_t i = 0; i < each; ++i) {
      const float x = from_bits(static_cast<std::uint32_t>((item * each + i) * 256 + random.below(256)));
      if (!sample.has(i)) continue;
      for (std::size_t row = 0; row < std::size(ruled); ++row)
        found[item * std::size(ruled) + row] += !agree(ruled[row], x);
    }
  });
  for (std::size_t item = 0; item < items; ++item)
    for (std::size_t row = 0; row < std::size(ruled); ++row)
      wrong[row] += found[item * std::size(ruled) + row];
  for (std::size_t row = 0; row < std::size(ruled); ++row) {
    INFO(ruled[row].name);
    CHECK(wrong[row] == 0);
  }
}

TEST_CASE("the H100's exponentials follow the rules at every edge", "[exponential]") {
  std::vector<float> edges{0.0f, infinity, not_a_number, from_bits(1), 0x1p-126f, 0x1.fffffcp-127f, 3.4e38f};
  // Where powers and results change: integers, the clamps of expf, overflow, underflow, fractions of 2^-23.
  for (const float centre : {0x1p-23f,    0x1p-24f,    0.5f,        1.0f,   2.0f,   63.5f,  64.0f,
                             87.3365479f, 88.7228394f, 103.972084f, 104.0f, 126.0f, 127.0f, 128.0f,
                             149.0f,      150.0f,      151.0f,      252.0f, 253.0f, 256.0f, 300.0f})
    for (int step = -40; step <= 40; ++step)
      edges.push_back(from_bits(bits_of(centre) + static_cast<std::uint32_t>(step)));
  for (const float edge : edges)
    for (const float x : {edge, -edge})
      for (const Ruled& row : ruled) {
        INFO(row.name << " of " << x);
        CHECK(agree(row, x));
      }
}

TEST_CASE("special values of the H100's exponentials are those listed", "[exponential]") {
  using namespace numeric::h100;
  CHECK(bits_of(ex2_ftz(not_a_number)) == 0x7fffffffu);
  for (const float small : {0.0f, -0.0f, from_bits(1), from_bits(0x807fffffu)}) CHECK(ex2_ftz(small) == 1.0f);
  CHECK(ex2_ftz(128.0f) == infinity);
  CHECK(ex2_ftz(from_bits(bits_of(128.0f) - 1)) < infinity);
  CHECK(ex2_ftz(-126.0f) == 0x1p-126f);
  CHECK(ex2_ftz(from_bits(bits_of(-126.0f) + 1)) == 0);
  CHECK(ex2_ftz(infinity) == infinity);
  CHECK(bits_of(ex2_ftz(-infinity)) == 0);
  CHECK(ex2(-149.0f) == 0x1p-149f);
  CHECK(ex2(-140.0f) == 0x1p-140f);
}

TEST_CASE("expf of CUDA is within 2 ULP, __expf is not", "[exponential]") {
  CHECK(worst_in(Exponential::cuda, 0x1p-20f, 88.722f, 101) <= 2);
  CHECK(worst_in(Exponential::cuda, -0x1p-20f, -103.0f, 101) <= 2);
  const double fast = worst_in(Exponential::cuda_fast, -60.0f, -87.0f, 11);
  CHECK(fast > 30);  // relative error up to 3.7e-6 at the ends of the range
  CHECK(fast < 70);
}

TEST_CASE("the other exponentials err as much as they say, and no more", "[exponential]") {
  for (const auto& [from, to] : {std::pair{0x1p-30f, 88.722f}, {-0x1p-30f, -103.9f}}) {
    CHECK(worst_in(Exponential::exact, from, to, 61) <= 0.5 + 1e-6);
    CHECK(worst_in(Exponential::libm, from, to, 61) < 0.503);
    CHECK(worst_in(Exponential::poly, from, to, 61) < 2.75);
  }
  CHECK(worst_in(Exponential::flush, -0x1p-30f, -87.336f, 61) <= 0.5 + 1e-6);
  // The product x log2(e), rounded, is off by up to half a unit of up to 127: 64 units of the result.
  for (const auto& [to, least, most] :
       {std::tuple{-1.0f, 0.9, 1.8}, {-5.0f, 2.5, 6.0}, {-20.0f, 8.0, 20.0}, {-87.0f, 40.0, 70.0}}) {
    INFO("exp2-scaled down to " << to);
    const double worst = worst_in(Exponential::exp2_scaled, to / 2, to, 7);
    CHECK(worst >= least);
    CHECK(worst <= most);
  }
}

TEST_CASE("libm, exact, flush and poly against MPFR", "[exponential]") {
  test::Random random(11);
  for (int i = 0; i < 20000; ++i) {
    const auto x = static_cast<float>(random.uniform(-103.9, 88.7));
    const test::Big truth = exp(test::Big(static_cast<double>(x)));
    const float rounded = truth.to_float();
    REQUIRE(kind(Exponential::exact, x) == rounded);
    REQUIRE(kind(Exponential::flush, x) == (rounded < 0x1p-126f ? 0.0f : rounded));
    REQUIRE(numeric::ulp_distance(kind(Exponential::libm, x), rounded) <= 1);
    REQUIRE(numeric::ulp_distance(kind(Exponential::poly, x), rounded) <= 3);
  }
}

TEST_CASE("exponentials of NaN, infinities, zeros and at both ends of the range", "[exponential]") {
  for (const Exponential exponential :
       {Exponential::exact, Exponential::libm, Exponential::cuda, Exponential::cuda_fast,
        Exponential::exp2_scaled, Exponential::flush, Exponential::poly, Exponential::xla}) {
    INFO("kind " << static_cast<int>(exponential));
    CHECK(std::isnan(kind(exponential, not_a_number)));
    CHECK(kind(exponential, infinity) == infinity);
    CHECK(bits_of(kind(exponential, -infinity)) == 0);
    CHECK(kind(exponential, 0.0f) == 1);
    CHECK(kind(exponential, -0.0f) == 1);
    CHECK(kind(exponential, from_bits(1)) == 1);
    CHECK(kind(exponential, 88.8f) == infinity);
    CHECK(kind(exponential, 88.7f) < infinity);
    CHECK(kind(exponential, -104.5f) == 0);
    // Subnormal results: gradual underflow but for flush and xla.
    const float subnormal = kind(exponential, -95.0f);
    const bool flushes = exponential == Exponential::flush || exponential == Exponential::xla;
    CHECK(flushes == (subnormal == 0));
    CHECK((subnormal == 0 || std::fabs(subnormal / 5.521082e-42f - 1) < 1e-3));
  }
  // The last finite and the first infinite.
  for (const Exponential exponential :
       {Exponential::exact, Exponential::libm, Exponential::cuda, Exponential::flush, Exponential::poly}) {
    INFO("kind " << static_cast<int>(exponential));
    CHECK(kind(exponential, 88.7228317f) < infinity);
    CHECK(kind(exponential, 88.7228394f) == infinity);
  }
}

}  // namespace exponentials_tests
