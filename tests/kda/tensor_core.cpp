// reduction=mma: the sums of a tensor core against the measured rules (docs/arithmetic.md), by hand and in
// integers.
#include <bit>
#include <cmath>
#include <vector>

#include "numeric/rounding.hpp"
#include "support/catch.hpp"
#include "support/sums.hpp"

using namespace kda_check;
using namespace kda_check::kda;
using namespace kda_check::test;

namespace {

__extension__ typedef __int128 Integer;

struct Scaled {
  Integer digits;  ///< value = digits * 2^exponent
  int exponent;
};
Scaled scaled(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return {static_cast<Integer>(std::ldexp(fraction, 24)), exponent - 24};
}
/// Towards zero: the digits above 2^place.
Integer cut(const Scaled& x, int place) {
  const int shift = x.exponent - place;
  if (shift >= 0) return x.digits * (static_cast<Integer>(1) << shift);
  if (shift < -120) return 0;
  const Integer unit = static_cast<Integer>(1) << -shift;
  return x.digits / unit;
}
int top(float x) { return std::ilogb(x); }

float ruled_mma(const std::vector<float>& a, const std::vector<float>& b, float c, int bits) {
  int largest = c != 0 ? top(c) : -10000;
  for (std::size_t j = 0; j < a.size(); ++j)
    if (a[j] != 0 && b[j] != 0) largest = std::max(largest, top(a[j]) + top(b[j]));
  if (largest == -10000) return 0;
  const int place = largest - bits;
  Integer sum = c != 0 ? cut(scaled(c), place) : 0;
  for (std::size_t j = 0; j < a.size(); ++j) {
    if (a[j] == 0 || b[j] == 0) continue;
    const Scaled left = scaled(a[j]), right = scaled(b[j]);
    sum += cut({left.digits * right.digits, left.exponent + right.exponent}, place);
  }
  // To 24 bits, towards zero.
  int dropped = 0;
  Integer digits = sum < 0 ? -sum : sum;
  while (digits >= (static_cast<Integer>(1) << 24)) digits /= 2, ++dropped;
  const float magnitude = std::ldexp(static_cast<float>(static_cast<std::int64_t>(digits)), place + dropped);
  return sum < 0 ? -magnitude : magnitude;
}

float ruled_mma_chain(const std::vector<float>& a, const std::vector<float>& b, float c, int bits,
                      std::size_t step) {
  for (std::size_t from = 0; from < a.size(); from += step) {
    const std::size_t to = std::min(a.size(), from + step);
    const auto first = static_cast<std::ptrdiff_t>(from), last = static_cast<std::ptrdiff_t>(to);
    c = ruled_mma({a.begin() + first, a.begin() + last}, {b.begin() + first, b.begin() + last}, c, bits);
  }
  return c;
}

/// One lane's sum on a tensor core: the terms given, zeros elsewhere.
float on_tensor_core(const Reduction& reduction, Rounding operands, float c, const std::vector<float>& a,
                     const std::vector<float>& b) {
  Terms<float> terms{a, std::vector<float>(a.size() * lanes)};
  for (std::size_t d = 0; d < a.size(); ++d) terms.b[d * lanes + 5] = b[d];
  std::vector<float> start(lanes);
  start[5] = c;
  return chunk_sum(reduction, true, terms, start, operands)[5];
}

}  // namespace

TEST_CASE("a term more than the bits below the largest vanishes", "[reductions][mma]") {
  const std::vector<float> ones(4, 1.0f);
  CHECK(on_tensor_core(mma25, Rounding::bf16, 0x1p26f, ones, ones) == 0x1p26f);      // exactly: 2^26 + 4
  CHECK(on_tensor_core(mma25, Rounding::bf16, 0x1p25f, ones, ones) == 0x1p25f + 4);  // 2^0 is the last place
  CHECK(on_tensor_core(mma24, Rounding::bf16, 0x1p25f, ones, ones) == 0x1p25f);
  CHECK(on_tensor_core(mma24, Rounding::bf16, 0x1p24f, ones, ones) == 0x1p24f + 4);
  // Four terms of 1.75 beside 2^25 count as 1 each; so do their negatives.
  const std::vector<float> more(4, 1.75f), less(4, -1.75f);
  CHECK(on_tensor_core(mma25, Rounding::bf16, 0x1p25f, more, ones) == 0x1p25f + 4);
  CHECK(on_tensor_core(mma25, Rounding::bf16, -0x1p25f, less, ones) == -0x1p25f - 4);
  // The largest may be a product, and the accumulator what vanishes.
  CHECK(on_tensor_core(mma25, Rounding::bf16, 1.0f, {0x1p13f, 0x1p13f}, {0x1p13f, -0x1p13f}) == 0.0f);
  CHECK(on_tensor_core(mma25, Rounding::bf16, 2.0f, {0x1p13f, 0x1p13f}, {0x1p13f, -0x1p13f}) == 2.0f);
}

TEST_CASE("a tensor core cuts its sum towards zero", "[reductions][mma]") {
  // 1 + 2^-24 + 2^-25: nearest would be 1 + 2^-23.
  CHECK(on_tensor_core(mma25, Rounding::bf16, 1.0f, {0x1p-24f, 0x1p-25f}, {1, 1}) == 1.0f);
  CHECK(on_tensor_core(mma25, Rounding::bf16, -1.0f, {-0x1p-24f, -0x1p-25f}, {1, 1}) == -1.0f);
  CHECK(on_tensor_core(mma25, Rounding::bf16, 1.0f, {-0x1p-25f}, {1}) == 1 - 0x1p-24f);
  // Just below infinity it stays finite.
  CHECK(on_tensor_core(mma25, Rounding::bf16, 3.4028234e38f, {0x1p60f}, {0x1p43f}) == 3.4028234e38f);
  CHECK(std::isinf(on_tensor_core(mma25, Rounding::bf16, 3.4028234e38f, {0x1p60f}, {0x1p67f})));
}

TEST_CASE("the exponent of a product is the sum of its operands', not renormalised", "[reductions][mma]") {
  // 1.5 * 1.5 = 2.25 counts as 2^0, so 2^-25 is still kept; counted as 2^1 it would be cut off.
  CHECK(on_tensor_core(mma25, Rounding::bf16, 0, {1.5f, 1.5f, 0x1p-25f}, {1.5f, -1.5f, 1}) == 0x1p-25f);
  CHECK(on_tensor_core(mma25, Rounding::bf16, 0, {1.5f, 1.5f, 0x1p-26f}, {1.5f, -1.5f, 1}) == 0.0f);
}

TEST_CASE(
    "an instruction takes 16 products of 16-bit operands and 8 of tf32, chained through the accumulator",
    "[reductions][mma]") {
  std::vector<float> a(24, 0.0f);
  const std::vector<float> b(24, 1.0f);
  a[0] = 0x1p26f, a[1] = -0x1p26f, a[9] = 1, a[17] = 0.5f;
  // Beside 2^26 the 1 vanishes if it is in the same instruction.
  CHECK(on_tensor_core(mma25, Rounding::bf16, 0, a, b) == 0.5f);
  CHECK(on_tensor_core(mma25, Rounding::fp16, 0, a, b) == 0.5f);
  CHECK(on_tensor_core(mma25, Rounding::tf32, 0, a, b) == 1.5f);
  CHECK(on_tensor_core(mma25, Rounding::none, 0, a, b) == 1.5f);
  // A large accumulator swallows what comes later, product by product.
  CHECK(on_tensor_core(mma25, Rounding::tf32, 0x1p26f, b, b) == 0x1p26f);
}

TEST_CASE("zeros on a tensor core", "[reductions][mma]") {
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  CHECK(bits(on_tensor_core(mma25, Rounding::bf16, 0, {0, 0}, {1, -1})) == 0);
  CHECK(bits(on_tensor_core(mma25, Rounding::bf16, -0.0f, {-0.0f, 0}, {1, -1})) ==
        0);  // an integer zero: no sign
  CHECK(bits(on_tensor_core(mma25, Rounding::bf16, 0, {1, 1}, {1, -1})) == 0);
  CHECK(bits(on_tensor_core(mma25, Rounding::bf16, -1, {1}, {1})) == 0);
  CHECK(on_tensor_core(mma25, Rounding::bf16, 3, {0}, {5}) == 3);
}

TEST_CASE("a tensor core agrees with integers on random numbers of every kind", "[reductions][mma]") {
  Random random(21);
  const auto draw = [&](int spread) {
    const float value = static_cast<float>(random.normal() * std::exp2(random.uniform(-spread, spread)));
    return numeric::through_bf16(value);
  };
  for (const int spread : {0, 4, 16})
    for (const bool one_signed : {false, true})
      for (int trial = 0; trial < 60; ++trial) {
        const std::size_t depth = 1 + random.below(70);
        Terms<float> terms;
        for (std::size_t d = 0; d < depth; ++d) terms.a.push_back(draw(spread));
        for (std::size_t e = 0; e < depth * lanes; ++e) terms.b.push_back(draw(spread));
        if (one_signed) {
          for (float& x : terms.a) x = std::fabs(x);
          for (float& x : terms.b) x = std::fabs(x);
        }
        std::vector<float> start;
        for (std::size_t lane = 0; lane < lanes; ++lane)
          start.push_back(trial % 3 == 0 ? 0.0f : static_cast<float>(random.normal()));
        for (const Reduction& reduction : {mma25, mma24})
          for (const auto& [operands, step] :
               {std::pair<Rounding, std::size_t>{Rounding::bf16, 16}, {Rounding::tf32, 8}}) {
            const std::vector<float> sums = chunk_sum(reduction, true, terms, start, operands);
            const std::vector<float> from_zero = chunk_sum_from_zero(reduction, terms, operands);
            for (std::size_t lane = 0; lane < lanes; ++lane) {
              const std::vector<float> b = terms.column(lane);
              REQUIRE(sums[lane] == ruled_mma_chain(terms.a, b, start[lane], reduction.width, step));
              REQUIRE(from_zero[lane] == ruled_mma_chain(terms.a, b, 0, reduction.width, step));
            }
          }
      }
}

TEST_CASE("infinities and NaN on a tensor core are those of the sum", "[reductions][mma]") {
  CHECK(std::isinf(on_tensor_core(mma25, Rounding::bf16, 0, {HUGE_VALF, 1}, {1, 1})));
  CHECK(std::isnan(on_tensor_core(mma25, Rounding::bf16, 0, {HUGE_VALF, HUGE_VALF}, {1, -1})));
  CHECK(std::isnan(on_tensor_core(mma25, Rounding::bf16, 0, {HUGE_VALF}, {0})));
  CHECK(std::isnan(on_tensor_core(mma25, Rounding::bf16, std::nanf(""), {1}, {1})));
}
