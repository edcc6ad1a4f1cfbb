// Measures have the same bits however tensors are read: threads, cuts, heads, blocks.
#include <cmath>
#include <cstring>
#include <limits>

#include "judge/measures/comparison.hpp"
#include "judge/measures/metrics.hpp"
#include "support/catch.hpp"
#include "support/comparing.hpp"
#include "support/random.hpp"
#include "support/sampled.hpp"

namespace comparison_reading_tests {

using namespace kda_check;
using judge::Comparison;
using judge::Measures;
using numeric::DType;
using tensor::Tensor;
using test::compared;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Values of all kinds, mostly equal on both sides.
void fill(Tensor& got, Tensor& expected, double share_that_differs, test::Random& random) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double value = random.normal(), kind = random.uniform(0, 1);
    got.set(i, value);
    expected.set(i, value);
    if (kind < share_that_differs) expected.set(i, value * (1 + 0.01 * random.normal()));
    if (kind > 0.999) got.set(i, kind > 0.9995 ? HUGE_VAL : not_a_number);
    if (kind > 0.9992 && kind < 0.9998) expected.set(i, not_a_number);
    if (kind > 0.998 && kind < 0.999) got.set(i, -0.0), expected.set(i, kind > 0.9985 ? 0.0 : -0.0);
  }
}

void check_same(const judge::Point& a, const judge::Point& b) {
  CHECK(a.element == b.element);
  CHECK(std::memcmp(&a.got, &b.got, sizeof a.got) == 0);
  CHECK(std::memcmp(&a.expected, &b.expected, sizeof a.expected) == 0);
  CHECK(a.rank == b.rank);
}

void check_same(const Measures& a, const Measures& b) {
  CHECK(a.elements == b.elements);
  CHECK(a.classes == b.classes);
  CHECK(a.finite == b.finite);
  CHECK(a.got_all_zero == b.got_all_zero);
  CHECK(a.expected_all_zero == b.expected_all_zero);
  CHECK(a.window_batch == b.window_batch);
  CHECK(a.window_token == b.window_token);
  CHECK(a.worst_head == b.worst_head);
  CHECK(a.distances.by_power_of_two() == b.distances.by_power_of_two());
  for (const judge::Metric& metric : judge::metrics()) {
    INFO(metric.name);
    const double first = metric.value(a), second = metric.value(b);
    CHECK(std::memcmp(&first, &second, sizeof first) == 0);
    check_same(metric.point(a), metric.point(b));
  }
  REQUIRE(a.worst.size() == b.worst.size());
  for (std::size_t i = 0; i < a.worst.size(); ++i) check_same(a.worst[i], b.worst[i]);
  REQUIRE(a.class_mismatches.size() == b.class_mismatches.size());
  for (std::size_t i = 0; i < a.class_mismatches.size(); ++i)
    check_same(a.class_mismatches[i], b.class_mismatches[i]);
}

/// Copies what is asked for, as reading from a file does.
judge::ElementSource copies_of(const Tensor& tensor) {
  return [&tensor](std::size_t begin, std::size_t count, std::byte* room) {
    std::memcpy(room, tensor.at(begin), count * numeric::format_of(tensor.dtype()).bytes);
    return room;
  };
}

Measures read_in_blocks(const Tensor& got, const Tensor& expected, std::size_t block,
                        const judge::ComparisonOptions& options) {
  Comparison comparison(got.name(), got.shape(), got.dtype(), false, options);
  for (std::size_t begin = 0; begin < got.size(); begin += block)
    comparison.add_read(begin, std::min(block, got.size() - begin), copies_of(got), expected.dtype(),
                        copies_of(expected));
  return comparison.finish();
}

/// The way of the oracle, which takes no short cut for equal elements.
Measures against_doubles(const Tensor& got, const Tensor& expected, const judge::ComparisonOptions& options) {
  std::vector<double> hi(expected.size()), lo(expected.size());
  for (std::size_t i = 0; i < hi.size(); ++i) hi[i] = expected.value(i);
  Comparison comparison(got.name(), got, false, false, options);
  comparison.add(0, got.size(), {hi.data(), lo.data(), nullptr});
  return comparison.finish();
}

}  // namespace

TEST_CASE("measures are the same on any number of threads and for any cut along the tokens", "[judge]") {
  test::Random random(8);
  const tensor::Shape shape{2, 37, 3, 10};
  Tensor got("o", DType::bf16, shape);
  std::vector<double> hi(got.size()), lo(got.size()), magnitude(got.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    hi[i] = random.normal();
    lo[i] = hi[i] * 0x1p-60;
    magnitude[i] = std::fabs(hi[i]) * random.uniform(1, 30);
    got.set(i, hi[i] * (1 + 0.01 * random.normal()));
  }
  const auto measured = [&](int threads, std::size_t cut_tokens) {
    judge::ComparisonOptions options;
    options.threads = threads;
    Comparison comparison("o", got, false, true, options);
    const std::size_t row = 30, tokens = 37;
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t t = 0; t < tokens; t += cut_tokens) {
        const std::size_t begin = (b * tokens + t) * row, count = std::min(cut_tokens, tokens - t) * row;
        comparison.add(begin, count, {hi.data() + begin, lo.data() + begin, magnitude.data() + begin});
      }
    return comparison.finish();
  };
  const Measures one = measured(1, 37);
  for (const int threads : {1, 2, 5})
    for (const std::size_t cut : {37, 16, 5}) {
      const Measures other = measured(threads, cut);
      CHECK(one.rms_ratio == other.rms_ratio);
      CHECK(one.bias == other.bias);
      CHECK(one.window_rms_ratio == other.window_rms_ratio);
      CHECK(one.head_rms_ratio == other.head_rms_ratio);
      CHECK(one.scaled_ulp.point.element == other.scaled_ulp.point.element);
      CHECK(one.distances.percentile(0.9) == other.distances.percentile(0.9));
      REQUIRE(one.worst.size() == other.worst.size());
      for (std::size_t i = 0; i < one.worst.size(); ++i)
        CHECK(one.worst[i].element == other.worst[i].element);
    }
}

TEST_CASE("measures are the same whether heads come together or one after the other", "[judge]") {
  test::Random random(9);
  const std::size_t T = 100, heads = 6, V = 10;
  Tensor got("o", DType::bf16, {2, T, heads, V}), truth("o", DType::fp32, {2, T, heads, V});
  fill(got, truth, 0.3, random);
  for (std::size_t i = 0; i < 40; ++i) got.set(got.size() - 1 - 7 * i, not_a_number);  // more than are listed
  std::vector<double> hi(got.size()), lo(got.size(), 0.0), magnitude(got.size());
  for (std::size_t i = 0; i < got.size(); ++i) hi[i] = truth.value(i), magnitude[i] = std::fabs(hi[i]) * 3;
  judge::ComparisonOptions options;
  options.threads = 2, options.against_oracle = true;
  Comparison together("o", got, false, true, options);
  together.add(0, got.size(), {hi.data(), lo.data(), magnitude.data()});
  const Measures whole = together.finish();
  CHECK(whole.class_mismatches.size() == 8);
  for (const bool last_first : {false, true}) {
    Comparison comparison("o", got, false, true, options);
    for (std::size_t i = 0; i < heads; ++i) {
      const std::size_t head = last_first ? heads - 1 - i : i;
      for (std::size_t row = 0; row < 2 * T; ++row) {
        const std::size_t begin = (row * heads + head) * V;
        comparison.add_run(begin, {hi.data() + begin, lo.data() + begin, magnitude.data() + begin},
                           static_cast<int>(head % 2));
      }
    }
    check_same(whole, comparison.finish());
  }
}

TEST_CASE("tensors read in blocks give the bits of tensors compared whole, for every cut and thread count",
          "[judge]") {
  struct Shaped {
    const char* name;
    tensor::Shape shape;
  };
  const Shaped shapes[] = {{"o", {2, 101, 6, 32}},         {"q", {1, 37, 3, 10}},   {"beta", {2, 211, 5}},
                           {"final_state", {3, 5, 16, 8}}, {"h", {2, 3, 4, 16, 8}}, {"A_log", {17}},
                           {"stranger", {1009}},           {"v", {1, 9, 1, 40000}}};
  const std::pair<DType, DType> types[] = {{DType::fp32, DType::fp32}, {DType::bf16, DType::bf16},
                                           {DType::fp16, DType::fp16}, {DType::fp64, DType::fp64},
                                           {DType::bf16, DType::fp32}, {DType::fp64, DType::fp32}};
  test::Random random(11);
  test::Sampled sample(4);
  INFO(sample.text());
  for (const Shaped& shaped : shapes)
    for (const auto& [got_type, expected_type] : types)
      for (const double share : {0.0, 0.0005, 0.7}) {
        if (!sample.next()) continue;
        INFO(shaped.name << ' ' << numeric::name_of(got_type) << ' ' << numeric::name_of(expected_type) << ' '
                         << share);
        Tensor got(shaped.name, got_type, shaped.shape), expected(shaped.name, expected_type, shaped.shape);
        fill(got, expected, share, random);
        judge::ComparisonOptions options;
        options.atol = 1e-3;
        const Measures reference = against_doubles(got, expected, options);
        check_same(compared(got, expected, options), reference);
        for (const auto& [block, threads] : {std::pair<std::size_t, int>{got.size(), 1},
                                             {got.size() / 2 + 1, 3},
                                             {got.size() / 7 + 3, 2},
                                             {997, 1}}) {
          if (got.size() > 100 * block) continue;
          options.threads = threads;
          check_same(read_in_blocks(got, expected, block, options), reference);
        }
      }
}

TEST_CASE("equal tensors of several blocks differ in nothing, zeros are seen to be zeros", "[judge]") {
  Tensor a("o", DType::fp32, {1, 4099, 8, 16}), zeros("o", DType::fp32, {1, 4099, 8, 16});
  test::Random random(12);
  for (std::size_t i = 0; i < a.size(); ++i) a.set(i, random.normal()), zeros.set(i, i % 3 == 0 ? -0.0 : 0.0);
  judge::ComparisonOptions options;
  options.threads = 2;
  const Measures m = read_in_blocks(a, a, 100'000, options);
  CHECK(m.finite == a.size());
  CHECK(m.differing_bits == 0);
  CHECK(m.rms_ratio == 0);
  CHECK_FALSE(m.got_all_zero);
  check_same(m, against_doubles(a, a, options));
  const Measures nothing = read_in_blocks(zeros, zeros, 100'000, options);
  CHECK(nothing.got_all_zero);
  CHECK(nothing.expected_all_zero);
  a.set(a.size() - 1, a.value(a.size() - 1) + 1);
  CHECK(read_in_blocks(a, zeros, 100'000, options).expected_all_zero);
}

TEST_CASE("errors token by token are the same from blocks", "[judge]") {
  Tensor got("o", DType::fp32, {2, 300, 4, 8}), expected("o", DType::fp32, {2, 300, 4, 8});
  test::Random random(13);
  fill(got, expected, 0.01, random);
  judge::ComparisonOptions options;
  options.series = true, options.threads = 2;
  Comparison whole("o", got, false, false, options), blocks("o", got.shape(), got.dtype(), false, options);
  whole.add_all(expected);
  for (std::size_t begin = 0; begin < got.size(); begin += 777)
    blocks.add_read(begin, std::min<std::size_t>(777, got.size() - begin), copies_of(got), expected.dtype(),
                    copies_of(expected));
  check_same(whole.finish(), blocks.finish());
  const judge::TokenSeries a = whole.take_series(), b = blocks.take_series();
  REQUIRE(a.cells.size() == b.cells.size());
  REQUIRE(a.cells.size() == 2 * 300 * 4);
  CHECK(std::memcmp(a.cells.data(), b.cells.data(), a.cells.size() * sizeof a.cells[0]) == 0);
}

}  // namespace comparison_reading_tests
