// reduction=mma: the sums of a tensor core against docs/arithmetic.md, by hand and against integers. Against
// GPUs: tensor_core_vectors.cpp.
#include <cmath>
#include <vector>

#include "kda/arithmetic/rounded.hpp"
#include "kda/gpu/product_draws.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/sums.hpp"
#include "support/tensor_core.hpp"

namespace tensor_core_tests {

using namespace kda_check;
using namespace kda_check::kda;
using namespace kda_check::test;

namespace {

/// One lane's sum on a tensor core: the terms given, zeros elsewhere.
float on_tensor_core(const Reduction& reduction, Rounding operands, float c, const std::vector<float>& a,
                     const std::vector<float>& b) {
  Terms<float> terms{a, std::vector<float>(a.size() * lanes)};
  for (std::size_t d = 0; d < a.size(); ++d) terms.b[d * lanes + 5] = b[d];
  std::vector<float> start(lanes);
  start[5] = c;
  return chunk_sum(reduction, true, terms, start, operands)[5];
}

/// A chain of operands that are split into three bf16 numbers each, by the rules.
float ruled_split(const Ruled& rule, std::size_t together, std::span<const float> a, std::span<const float> b,
                  float c) {
  const auto part = [](std::span<const float> x, std::size_t from, std::size_t count, int number) {
    std::vector<float> parts;
    for (float rest : x.subspan(from, count)) {
      float next = rounded(Rounding::bf16, rest);
      for (int before = 0; before < number; ++before) rest -= next, next = rounded(Rounding::bf16, rest);
      parts.push_back(next);
    }
    return parts;
  };
  float low = 0;
  for (std::size_t from = 0; from < a.size(); from += together) {
    const std::size_t count = std::min(together, a.size() - from);
    const auto product = [&](int of_a, int of_b, float sum) {
      return rule(part(a, from, count, of_a), part(b, from, count, of_b), sum);
    };
    low = product(2, 0, low), low = product(0, 2, low), low = product(1, 1, low);
    low = product(1, 0, low), low = product(0, 1, low);
    c = product(0, 0, c);
  }
  return c + low;
}

/// Sums of so many products of each kind, on every instruction set, against the rules.
std::size_t hold_to_rules(Random& random, const Reduction& reduction, Rounding operands, std::size_t depth,
                          Accumulator accumulator = Accumulator::fp32) {
  constexpr std::size_t rows = 70, columns = 64;  // more rows than are prepared at a time
  const bool is_narrow = accumulator == Accumulator::fp16, is_split = reduction.kind == ReductionKind::split;
  const auto chain = is_split ? ruled_split : ruled_chain;
  const Ruled rule(reduction.width, operands, is_narrow);
  const std::size_t instruction = operands == Rounding::tf32 ? 8 : 16,
                    together = reduction.width == 24 ? instruction / 2 : instruction;
  std::size_t checked = 0;
  std::vector<DrawKind> kinds{DrawKind::sinking};
  for (const DrawKindName& row : draw_kinds) kinds.push_back(row.kind);
  for (const DrawKind kind : kinds) {
    std::vector<float> a(rows * depth), b(depth * columns), start(rows * columns), expected;
    ProductDraw(random.bits(), 0, operands, accumulator)
        .fill(kind, rows, columns, depth, a.data(), b.data(), start.data());
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t column = 0; column < columns; ++column) {
        std::vector<float> of_column(depth);
        for (std::size_t d = 0; d < depth; ++d) of_column[d] = b[d * columns + column];
        expected.push_back(chain(rule, together, std::span(a).subspan(row * depth, depth), of_column,
                                 start[row * columns + column]));
      }
    const KernelTables tables = kernel_tables();
    for (int t = 0; t < tables.count; ++t) {
      std::vector<float> sums = start;
      tables.table[t]->tensor_core({tensor_core(reduction, operands, accumulator), rows, columns, depth,
                                    a.data(), b.data(), sums.data()});
      std::size_t mismatches = 0;
      for (std::size_t e = 0; e < sums.size(); ++e) mismatches += !same(sums[e], expected[e]);
      INFO(tables.table[t]->instruction_set << ", kind " << static_cast<int>(kind) << ", format "
                                            << static_cast<int>(operands) << ", " << reduction.width
                                            << " bits, " << depth << " products");
      REQUIRE(mismatches == 0);
    }
    checked += expected.size();
  }
  return checked;
}

}  // namespace

TEST_CASE("a tensor core agrees with integers on a million sums of numbers of every kind",
          "[reductions][mma]") {
  Random random(22);
  std::size_t checked = 0;
  for (const Reduction& reduction : {mma25, mma24})
    for (const Rounding operands : {Rounding::bf16, Rounding::fp16, Rounding::tf32})
      for (const std::size_t depth : {8, 16, 16, 16, 37})
        checked += hold_to_rules(random, reduction, operands, depth);
  CHECK(checked >= 1'000'000);
}

TEST_CASE("six products of operands split in three agree with integers on numbers of every kind",
          "[reductions][mma]") {
  Random random(24);
  for (const Reduction& reduction : {Reduction{ReductionKind::split, 25}, {ReductionKind::split, 24}})
    for (const std::size_t depth : {8, 16, 37}) hold_to_rules(random, reduction, Rounding::none, depth);
}

TEST_CASE("three bf16 numbers are an fp32 number, but near the ends of the range", "[reductions][mma]") {
  Random random(25);
  const Reduction split{ReductionKind::split, 25};
  for (int trial = 0; trial < 1000; ++trial) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()));
    if (!(std::fabs(x) > 0x1p-100f && std::fabs(x) < 0x1p120f)) continue;
    CHECK(on_tensor_core(split, Rounding::none, 0, {x}, {1}) == x);
    CHECK(on_tensor_core(split, Rounding::none, 0, {1}, {x}) == x);
  }
  CHECK(std::isnan(on_tensor_core(split, Rounding::none, 0, {HUGE_VALF}, {1})));
}

TEST_CASE("an accumulator in fp16 agrees with integers on numbers of every kind", "[reductions][mma]") {
  Random random(23);
  for (const Reduction& reduction : {mma25, mma24})
    for (const std::size_t depth : {16, 16, 37})
      hold_to_rules(random, reduction, Rounding::fp16, depth, Accumulator::fp16);
}

TEST_CASE("sums that sink tell whether the largest exponent has a floor", "[reductions][mma]") {
  constexpr std::size_t rows = 16, depth = 16, draws = 32;
  struct Row {
    Rounding operands;
    Accumulator accumulator;
    int floor_of_25, floor_of_24;
  };
  for (const Row& row :
       {Row{Rounding::bf16, Accumulator::fp32, -133, -132},
        Row{Rounding::tf32, Accumulator::fp32, -133, -132}, Row{Rounding::fp16, Accumulator::fp16, -21, -20}})
    for (const Reduction& reduction : {mma25, mma24}) {
      const bool is_narrow = row.accumulator == Accumulator::fp16;
      const Ruled sinks(reduction.width, row.operands, is_narrow, -1000),
          stops(reduction.width, row.operands, is_narrow,
                reduction.width == 25 ? row.floor_of_25 : row.floor_of_24);
      const std::size_t together = tensor_core(reduction, row.operands).together;
      std::size_t differing = 0;
      for (std::size_t stream = 0; stream < draws; ++stream) {
        std::vector<float> a(rows * depth), b(rows * depth), start(rows * rows);
        ProductDraw(5, stream, row.operands, row.accumulator)
            .fill(DrawKind::sinking, rows, rows, depth, a.data(), b.data(), start.data());
        for (std::size_t i = 0; i < start.size(); ++i) {
          std::vector<float> column(depth);
          for (std::size_t d = 0; d < depth; ++d) column[d] = b[d * rows + i % rows];
          const auto of_row = std::span(a).subspan(i / rows * depth, depth);
          differing += !same(ruled_chain(sinks, together, of_row, column, start[i]),
                             ruled_chain(stops, together, of_row, column, start[i]));
        }
      }
      INFO("format " << static_cast<int>(row.operands) << ", " << reduction.width << " bits");
      CHECK(differing > draws * rows * rows / 20);
    }
}

TEST_CASE("operands that are drawn have their format's digits", "[reductions][mma]") {
  for (const Rounding operands : {Rounding::bf16, Rounding::fp16, Rounding::tf32})
    for (const DrawKindName& kind : draw_kinds) {
      ProductDraw draw(6, 0, operands, Accumulator::fp16);
      for (int i = 0; i < 2000; ++i) {
        for (const float x : {draw.left(kind.kind), draw.right(kind.kind)})
          REQUIRE((std::isnan(x) || same(rounded(operands, x), x)));
        const float x = draw.accumulator(kind.kind);
        REQUIRE((std::isnan(x) || same(rounded(Rounding::fp16, x), x)));
      }
    }
}

TEST_CASE("products of a chunk are a tensor core's, whatever their depth", "[reductions][mma]") {
  Random random(21);
  for (int trial = 0; trial < 60; ++trial) {
    const std::size_t depth = 1 + random.below(70);
    for (const Rounding operands : {Rounding::bf16, Rounding::fp16, Rounding::tf32, Rounding::none}) {
      ProductDraw draw(random.bits(), 0, operands, Accumulator::fp32);
      Terms<float> terms;
      std::vector<float> start;
      for (std::size_t d = 0; d < depth; ++d) terms.a.push_back(draw.left(DrawKind::ordinary));
      for (std::size_t e = 0; e < depth * lanes; ++e) terms.b.push_back(draw.right(DrawKind::ordinary));
      for (std::size_t lane = 0; lane < lanes; ++lane) start.push_back(draw.accumulator(DrawKind::ordinary));
      for (const Reduction& reduction : {mma25, mma24}) {
        const Ruled rule(reduction.width, operands);
        const std::size_t together = tensor_core(reduction, operands).together;
        const std::vector<float> sums = chunk_sum(reduction, true, terms, start, operands);
        const std::vector<float> from_zero = chunk_sum_from_zero(reduction, terms, operands);
        for (std::size_t lane = 0; lane < lanes; ++lane) {
          const std::vector<float> b = terms.column(lane);
          REQUIRE(same(sums[lane], ruled_chain(rule, together, terms.a, b, start[lane])));
          REQUIRE(same(from_zero[lane], ruled_chain(rule, together, terms.a, b, 0)));
        }
      }
    }
  }
}

TEST_CASE("zeros on a tensor core", "[reductions][mma]") {
  CHECK(bits_of(on_tensor_core(mma25, Rounding::bf16, 0, {0, 0}, {1, -1})) == 0);
  CHECK(bits_of(on_tensor_core(mma25, Rounding::bf16, -0.0f, {-0.0f, 0}, {1, -1})) == 0);  // never -0
  CHECK(bits_of(on_tensor_core(mma25, Rounding::bf16, 0, {1, 1}, {1, -1})) == 0);
  CHECK(bits_of(on_tensor_core(mma25, Rounding::bf16, -1, {1}, {1})) == 0);
  CHECK(on_tensor_core(mma25, Rounding::bf16, 3, {0}, {5}) == 3);
  // A zero does not count, however large the other factor.
  CHECK(on_tensor_core(mma25, Rounding::bf16, 1, {0, 0x1p-23f}, {0x1p127f, 1}) == 1 + 0x1p-23f);
  CHECK(on_tensor_core(mma25, Rounding::bf16, 0, {0, 0x1p-100f, -0x1p-100f},
                       {0x1p127f, 0x1p-49f, 0x1p-56f}) == 0);
}

TEST_CASE("infinities and NaN on a tensor core", "[reductions][mma]") {
  const float nan = std::nanf("");
  const auto sum = [](float c, const std::vector<float>& a, const std::vector<float>& b) {
    return bits_of(on_tensor_core(mma25, Rounding::bf16, c, a, b));
  };
  CHECK(sum(0, {HUGE_VALF, 1}, {1, 1}) == infinite);
  CHECK(sum(0, {HUGE_VALF, 1}, {-1, 1}) == (infinite | sign_bit));
  CHECK(sum(-HUGE_VALF, {1}, {1}) == (infinite | sign_bit));
  CHECK(sum(0, {HUGE_VALF, HUGE_VALF}, {1, -1}) == not_a_number);
  CHECK(sum(HUGE_VALF, {HUGE_VALF}, {-1}) == not_a_number);
  CHECK(sum(0, {HUGE_VALF}, {0}) == not_a_number);
  CHECK(sum(nan, {1}, {1}) == not_a_number);
  CHECK(sum(0, {-nan}, {1}) == not_a_number);
}

}  // namespace tensor_core_tests
