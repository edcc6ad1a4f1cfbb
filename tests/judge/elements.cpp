// The fast form of counting elements beside its definition, and its kernels beside one another.
#include "judge/measures/elements.hpp"

#include <cmath>
#include <cstring>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace elements_tests {

using namespace kda_check;
using judge::Cell;
using judge::ElementCounter;
using judge::Measures;
using judge::Run;
using judge::TokenErrors;
using numeric::Bfloat16;
using numeric::Float16;

namespace {

bool same(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }
bool same(const judge::Point& a, const judge::Point& b) {
  return a.element == b.element && same(a.got, b.got) && same(a.expected.hi, b.expected.hi) &&
         same(a.expected.lo, b.expected.lo) && same(a.magnitude, b.magnitude) && same(a.rank, b.rank);
}

void check_same(const Measures& a, const Measures& b) {
  CHECK(a.finite == b.finite);
  CHECK(a.classes == b.classes);
  CHECK(a.differing == b.differing);
  CHECK(a.differing_bits == b.differing_bits);
  CHECK(a.outside == b.outside);
  CHECK(a.got_all_zero == b.got_all_zero);
  CHECK(a.expected_all_zero == b.expected_all_zero);
  CHECK(a.distances == b.distances);
  for (judge::Extreme Measures::*const extreme :
       {&Measures::max_ulp, &Measures::ulp_error, &Measures::scaled_ulp, &Measures::max_abs,
        &Measures::max_rel, &Measures::worst_excess}) {
    CHECK(same((a.*extreme).value, (b.*extreme).value));
    CHECK(same((a.*extreme).point, (b.*extreme).point));
  }
  REQUIRE(a.worst.size() == b.worst.size());
  for (std::size_t i = 0; i < a.worst.size(); ++i) CHECK(same(a.worst[i], b.worst[i]));
}
void check_same(Cell a, Cell b) {
  REQUIRE((a.is_plain() && b.is_plain()));
  CHECK(same(*a.difference2.plain(), *b.difference2.plain()));
  CHECK(same(*a.expected2.plain(), *b.expected2.plain()));
  CHECK(same(*a.product.plain(), *b.product.plain()));
  CHECK(a.elements == b.elements);
}
void check_same(const TokenErrors& a, const TokenErrors& b) {
  CHECK(same(a.difference2.root(), b.difference2.root()));
  CHECK(same(a.expected2.root(), b.expected2.root()));
  CHECK(same(a.max_abs, b.max_abs));
  CHECK(same(a.scaled_ulp, b.scaled_ulp));
  CHECK(a.abs_lane == b.abs_lane);
  CHECK(a.ulp_lane == b.ulp_lane);
}

/// The ends of a format, its subnormal numbers, powers of two and what lies beside them; of fp64 those whose
/// squares are numbers.
template <class Storage>
std::vector<double> hard_numbers() {
  constexpr const numeric::Format& format = numeric::format_for<Storage>;
  constexpr bool is_fp64 = sizeof(Storage) == sizeof(double);
  const double step = is_fp64 ? 0x1p-439 : format.smallest_step(),
               normal = is_fp64 ? 0x1p-430 : format.smallest_normal(),
               largest = is_fp64 ? 0x1p448 : format.largest(), unit = 2 * format.unit_roundoff();
  std::vector<double> numbers{0.0,      step,         2 * step,     3 * step, normal, 1,
                              1 + unit, 1 + 2 * unit, 1 - unit / 2, 3,        largest};
  if (!is_fp64)
    for (const double x : {normal - step, normal + step, largest - largest / (2 / unit - 1)})
      numbers.push_back(x);
  for (std::size_t i = 0, count = numbers.size(); i < count; ++i) numbers.push_back(-numbers[i]);
  return numbers;
}

template <class Storage>
struct Sides {
  std::vector<Storage> got;
  std::vector<double> hi, lo, magnitude;
};

/// Elements of which many have the same errors: hard numbers beside themselves, their neighbours, the middle
/// between these, and a crumb more or less.
template <class Storage>
Sides<Storage> hard_sides(std::size_t count, std::uint64_t seed) {
  test::Random random(seed);
  const std::vector<double> hard = hard_numbers<Storage>();
  Sides<Storage> sides;
  for (std::size_t i = 0; i < count; ++i) {
    const double exact =
        random.below(3) == 0 ? hard[random.below(hard.size())] : std::ldexp(random.normal(), -3);
    const double of_type = numeric::widen(numeric::round_to<Storage>(exact));
    const double step = of_type == 0 ? 0
                                     : numeric::unit_in_last_place(numeric::format_for<Storage>,
                                                                   numeric::exponent_of(of_type));
    double hi = random.below(4) == 0 ? exact : of_type, lo = 0;
    if (random.below(4) == 0 && std::fabs(hi) < numeric::largest_finite<Storage> / 2)
      hi += step / 2;  // a tie
    if (random.below(2) == 0 && std::fabs(hi) > 0x1p-400)
      lo = hi * 0x1p-54 * (random.below(2) == 0 ? 1 : -0.5);
    double got = of_type;
    if (random.below(2) == 0 && std::fabs(of_type) < numeric::largest_finite<Storage> / 4)
      got += step * (static_cast<double>(random.below(5)) - 2);
    if (random.below(9) == 0) got = -got;
    if (random.below(40) == 0) got = std::copysign(0.0, got);
    if (std::fabs(got) < 0x1p-440) got = std::copysign(0.0, got);
    sides.got.push_back(numeric::round_to<Storage>(got));
    sides.hi.push_back(hi), sides.lo.push_back(lo);
    sides.magnitude.push_back(random.below(6) == 0 ? 0 : std::fabs(hi) * random.uniform(0.5, 40));
  }
  return sides;
}

/// Counts the same runs in both forms. `shift`: in which order, as heads may come before earlier tokens.
template <class Storage, class Expected>
void check_forms(const Sides<Storage>& sides, const judge::ComparisonOptions& options, bool has_magnitude,
                 std::size_t length, std::size_t shift, const auto& expected_from) {
  static const judge::TensorAxes axes;
  Measures fast_measures, slow_measures;
  Cell fast_cell, slow_cell;
  TokenErrors fast_token, slow_token;
  ElementCounter fast(options, axes, has_magnitude, fast_measures),
      slow(options, axes, has_magnitude, slow_measures);
  const std::size_t runs = sides.got.size() / length;
  constexpr double most = std::min(numeric::ProductSum::most_root, numeric::largest_finite<Storage>);
  for (std::size_t n = 0; n < runs; ++n) {
    const std::size_t begin = (n * shift + 1) % runs * length;
    const Expected expected = expected_from(begin);
    REQUIRE((judge::sizes_within(&sides.got[begin], length, most) && expected.are_within(length, most)));
    const Run run{begin, length, 0};
    fast.count(run, &sides.got[begin], expected, fast_cell, &fast_token);
    slow.count_any(run, &sides.got[begin], expected, slow_cell, &slow_token);
  }
  check_same(fast_measures, slow_measures);
  check_same(fast_cell, slow_cell);
  check_same(fast_token, slow_token);
}

std::vector<judge::ComparisonOptions> options_to_try() {
  std::vector<judge::ComparisonOptions> options(4);
  options[1].rtol = 1e-2;
  options[2].atol = 1e-3, options[2].worst = 1;
  options[3].atol = 1e-30, options[3].rtol = 0x1p-9, options[3].worst = 0;
  return options;
}

}  // namespace

TEMPLATE_TEST_CASE("many elements at once are counted as one after the other, against double-doubles",
                   "[judge]", Bfloat16, Float16, float, double) {
  const Sides<TestType> sides = hard_sides<TestType>(2000, 31);
  const auto from = [&](std::size_t begin) {
    return judge::WideValues{{&sides.hi[begin], &sides.lo[begin], &sides.magnitude[begin]}};
  };
  for (const judge::ComparisonOptions& options : options_to_try())
    for (const bool has_magnitude : {false, true})
      for (const std::size_t length : {1, 5, 63, 64, 65, 128, 200})
        for (const std::size_t shift : {1, 7}) {
          INFO(has_magnitude << " runs of " << length << " shift " << shift << " worst " << options.worst);
          check_forms<TestType, judge::WideValues>(sides, options, has_magnitude, length, shift, from);
        }
}

TEMPLATE_TEST_CASE("many elements at once are counted as one after the other, against another tensor",
                   "[judge]", Bfloat16, Float16, float, double) {
  Sides<TestType> sides = hard_sides<TestType>(2000, 32);
  const std::vector<TestType> same_type = [&] {
    std::vector<TestType> elements;
    for (const double x : sides.hi) elements.push_back(numeric::round_to<TestType>(x));
    return elements;
  }();
  for (const judge::ComparisonOptions& options : options_to_try())
    for (const std::size_t length : {3, 64, 100}) {
      INFO("runs of " << length << " worst " << options.worst);
      check_forms<TestType, judge::StoredValues<TestType>>(
          sides, options, false, length, 3,
          [&](std::size_t begin) { return judge::StoredValues<TestType>{&same_type[begin]}; });
      check_forms<TestType, judge::StoredValues<double>>(
          sides, options, false, length, 3,
          [&](std::size_t begin) { return judge::StoredValues<double>{&sides.hi[begin]}; });
    }
}

TEST_CASE("of equal errors at several places the first element is named, whatever the order of runs",
          "[judge]") {
  constexpr std::size_t length = 70, runs = 6;
  Sides<float> sides;
  for (std::size_t i = 0; i < length * runs; ++i) {
    sides.got.push_back(i % 9 == 4 ? 1 + 0x1p-20f : 1);
    sides.hi.push_back(1), sides.lo.push_back(0), sides.magnitude.push_back(2);
  }
  judge::ComparisonOptions options;
  const judge::TensorAxes axes;
  Measures measures;
  Cell cell;
  ElementCounter counter(options, axes, true, measures);
  for (const std::size_t n : {3, 5, 1, 0, 4, 2})
    counter.count(
        {n * length, length, 0}, &sides.got[n * length],
        judge::WideValues{{&sides.hi[n * length], &sides.lo[n * length], &sides.magnitude[n * length]}}, cell,
        nullptr);
  for (const judge::Extreme* const extreme : {&measures.max_ulp, &measures.ulp_error, &measures.scaled_ulp,
                                              &measures.max_abs, &measures.max_rel, &measures.worst_excess})
    CHECK(extreme->point.element == 4);
  REQUIRE(measures.worst.size() == options.worst);
  for (std::size_t i = 0; i < options.worst; ++i) CHECK(measures.worst[i].element == 4 + 9 * i);
}

TEMPLATE_TEST_CASE("every instruction set gives the same bits: errors of elements", "[judge]", Bfloat16,
                   Float16, float, double) {
  const kda::KernelTables tables = kda::kernel_tables();
  constexpr numeric::DType dtype = numeric::StorageTraits<TestType>::dtype;
  const Sides<TestType> sides = hard_sides<TestType>(1000, 33);
  for (const std::size_t count : {1, 31, 64})
    for (std::size_t begin = 0; begin + count <= sides.got.size(); begin += count) {
      kda::ElementBlock first{};
      for (int i = 0; i < tables.count; ++i) {
        kda::ElementBlock block{};
        block.count = count, block.got = &sides.got[begin];
        block.hi = &sides.hi[begin], block.lo = &sides.lo[begin], block.magnitude = &sides.magnitude[begin];
        block.rtol = 0x1p-9, block.largest = {1, 0x1p-12, 0.5, 0.25, 0x1p-10, 0x1p-8};
        block.difference2 = 1, block.expected2 = 2, block.product = -1;
        tables.table[i]->elements.errors(dtype, block);
        if (i == 0) first = block;
        REQUIRE(std::memcmp(&block, &first, sizeof block) == 0);
      }
    }
}

TEST_CASE("the bins of distances are those of their five leading bits", "[judge]") {
  const auto bin_of = [](std::uint64_t distance) {
    if (distance < 32) return distance;
    const auto places = static_cast<std::uint64_t>(std::bit_width(distance)) - 5;
    return 32 + (places - 1) * 16 + ((distance >> places) - 16);
  };
  for (int power = 0; power < 64; ++power)
    for (const std::uint64_t fraction :
         {0x8000'0000'0000'0000u, 0x87ff'ffff'ffff'ffffu, 0x8800'0000'0000'0000u, 0xf7ff'ffff'ffff'ffffu,
          0xffff'ffff'ffff'ffffu}) {
      const std::uint64_t distance = fraction >> power;
      REQUIRE(numeric::distance_bin(distance) == bin_of(distance));
      if (power >= 12) REQUIRE(numeric::distance_bin<52>(distance) == bin_of(distance));
      REQUIRE(numeric::double_of(distance) == static_cast<double>(distance));
    }
}

}  // namespace elements_tests
