#include "judge/measures/comparison.hpp"

#include <cmath>
#include <limits>

#include "judge/measures/metrics.hpp"
#include "support/catch.hpp"
#include "support/comparing.hpp"
#include "support/random.hpp"

namespace comparison_tests {

using namespace kda_check;
using judge::Comparison;
using judge::Measures;
using numeric::DType;
using tensor::Tensor;

namespace {

using test::compared;

Tensor tensor_of(std::string name, DType dtype, tensor::Shape shape, const std::vector<double>& values) {
  Tensor tensor(std::move(name), dtype, std::move(shape));
  for (std::size_t i = 0; i < values.size(); ++i) tensor.set(i, values[i]);
  return tensor;
}

Measures compared(const std::vector<double>& got, const std::vector<double>& expected,
                  DType dtype = DType::fp32) {
  return compared(tensor_of("x", dtype, {got.size()}, got),
                  tensor_of("x", DType::fp64, {got.size()}, expected));
}

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("equal tensors differ in nothing", "[judge]") {
  const Measures m = compared({1, -2, 0, 1e-30}, {1, -2, 0, static_cast<double>(1e-30f)});
  CHECK(m.differing == 0);
  CHECK(m.max_ulp.value == 0);
  CHECK(m.rms_ratio == 0);
  CHECK(m.bias == 0);
  CHECK(m.outside == 0);
  CHECK(m.max_ulp.point.element == judge::no_element);
}

TEST_CASE("zeros of different sign differ in their bits and in nothing else", "[judge]") {
  const Measures zeros = compared({0.0, -0.0, -0.0, 1}, {0.0, -0.0, 0.0, 1});
  CHECK(zeros.differing == 0);
  CHECK(zeros.max_ulp.value == 0);
  CHECK(zeros.differing_bits == 1);
  const Measures others = compared({1, 2, HUGE_VAL, 3}, {1, 2 + 0x1p-22, -HUGE_VAL, not_a_number});
  CHECK(others.differing == 3);
  CHECK(others.differing_bits == 3);
  for (const DType dtype : {DType::fp64, DType::bf16, DType::fp16})
    CHECK(compared({-0.0, 1}, {0.0, 1}, dtype).differing_bits == 1);
}

TEST_CASE("every measure has its definition", "[judge]") {
  const double step = 0x1p-23;
  const Measures m = compared({1 + step, 2, -4 - 4 * step}, {1, 2, -4});
  CHECK(m.max_ulp.value == 1);
  CHECK(m.max_ulp.point.element == 0);  // the first of two with the same distance
  CHECK(m.ulp_error.value == 1);
  CHECK(m.max_abs.value == 4 * step);
  CHECK(m.max_abs.point.element == 2);
  CHECK(m.max_rel.value == step);
  CHECK(m.rms_ratio == Approx(std::sqrt(17 * step * step / 21)));
  CHECK(m.bias == Approx((step + 16 * step) / 21));
  CHECK(m.differing == 2);
}

TEST_CASE("the expected value is rounded once before steps are counted, not before errors are measured",
          "[judge]") {
  // 1 + 2^-8 is the middle of two bfloat16 values, a little more decides for the upper.
  const Measures m = compared({1.0}, {1 + 0x1p-8 + 0x1p-30}, DType::bf16);
  CHECK(m.max_ulp.value == 1);
  CHECK(m.ulp_error.value == Approx(0.5));
  CHECK(m.max_abs.value == 0x1p-8 + 0x1p-30);
}

TEST_CASE("classes are counted before anything else and never enter a maximum", "[judge]") {
  const Measures m = compared({1, not_a_number, HUGE_VAL, 5, not_a_number, HUGE_VAL, 3},
                              {1, 2, 3, not_a_number, not_a_number, HUGE_VAL, -HUGE_VAL});
  CHECK(m.mismatched_classes() == 4);
  CHECK(m.classes[3][0] == 1);
  CHECK(m.classes[1][0] == 1);
  CHECK(m.classes[0][3] == 1);
  CHECK(m.classes[0][2] == 1);
  CHECK(m.both_nan() == 1);
  CHECK(m.finite == 1);
  CHECK(m.max_abs.value == 0);
  REQUIRE(m.class_mismatches.size() == 4);
  CHECK(m.class_mismatches[0].element == 1);
}

TEST_CASE("an expected value beyond the element type counts as its infinity", "[judge]") {
  const Measures m = compared({HUGE_VAL, 65504}, {1e6, 1e6}, DType::fp16);
  CHECK(m.classes[1][1] == 1);
  CHECK(m.mismatched_classes() == 1);
}

TEST_CASE(
    "next to the overflow threshold the largest number and infinity are one step apart, not two classes",
    "[judge]") {
  struct Range {
    DType dtype;
    double largest, step;
  };
  const Range ranges[] = {{DType::fp16, 65504, 32},
                          {DType::bf16, 0x1.fep127, 0x1p120},
                          {DType::fp32, 0x1.fffffep127, 0x1p104},
                          {DType::fp64, 0x1.fffffffffffffp1023, 0x1p971}};
  for (const auto& [dtype, largest, step] : ranges)
    for (const double sign : {1.0, -1.0}) {
      INFO(numeric::name_of(dtype) << " " << sign);
      const double infinity = sign * HUGE_VAL;
      // Below the threshold, largest + step / 2, the expected value is the largest number.
      const Measures over = compared({infinity}, {sign * largest}, dtype);
      CHECK(over.mismatched_classes() == 0);
      CHECK(over.finite == 1);
      CHECK(over.max_ulp.value == 1);
      CHECK(over.differing == 1);
      CHECK(over.ulp_error.value == 1);
      CHECK(over.max_abs.value == step);
      CHECK(over.rms_ratio == Approx(step / largest));
      CHECK(over.max_ulp.point.got == infinity);
      if (dtype != DType::fp64) {  // beyond fp64 nothing is expected but infinity
        const Measures under = compared({sign * largest}, {sign * (largest + step / 2)}, dtype);
        CHECK(under.mismatched_classes() == 0);
        CHECK(under.max_ulp.value == 1);
        CHECK(under.ulp_error.value == 0.5);
        CHECK(under.max_abs.value == step / 2);
        const Measures rounded_up = compared({infinity}, {sign * (largest + step * 0.499)}, dtype);
        CHECK(rounded_up.max_ulp.value == 1);
        CHECK(rounded_up.ulp_error.value == Approx(0.501));
        // Exactly where infinity is on the line, and a little beyond: nobody may be as far off as that.
        CHECK(compared({sign * largest}, {sign * (largest + step)}, dtype).mismatched_classes() == 0);
        CHECK(compared({sign * largest}, {sign * (largest + 1.01 * step)}, dtype).mismatched_classes() == 1);
        CHECK(compared({sign * largest}, {sign * 2 * largest}, dtype).mismatched_classes() == 1);
        // On the right side of the threshold infinity is what is expected.
        const Measures right = compared({infinity}, {sign * (largest + step / 2)}, dtype);
        CHECK(right.mismatched_classes() == 0);
        CHECK(right.differing == 0);
      }
      // Two steps off, or on the other side of zero, is another class; and so is the largest number where
      // infinity was recorded, which may stand for anything.
      CHECK(compared({infinity}, {sign * (largest - step)}, dtype).mismatched_classes() == 1);
      CHECK(compared({sign * (largest - step)}, {infinity}, dtype).mismatched_classes() == 1);
      CHECK(compared({infinity}, {-sign * largest}, dtype).mismatched_classes() == 1);
      CHECK(compared({sign * largest}, {infinity}, dtype).mismatched_classes() == 1);
    }
}

TEST_CASE("ratios are the same however small or large the tensor, in fp64 to the ends of the range",
          "[judge]") {
  const tensor::Shape shape{2, 37, 6, 10};
  test::Random random(14);
  std::vector<double> expected(tensor::element_count(shape)), got = expected, equal = expected;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] = random.uniform(0.5, 2) * (random.below(2) == 0 ? 1 : -1);
    got[i] = expected[i] * (1 + 0x1p-20 * random.normal());
    equal[i] = i < expected.size() / 2 ? expected[i] : got[i];
  }
  const auto scaled = [&](std::vector<double> values, double unit) {
    for (double& value : values) value *= unit;
    return tensor_of("o", DType::fp64, shape, values);
  };
  judge::ComparisonOptions options;
  options.series = false;
  for (const std::vector<double>* const answer : {&got, &equal}) {
    const Measures one = compared(scaled(*answer, 1), scaled(expected, 1), options);
    REQUIRE(one.rms_ratio > 1e-7);
    for (const double unit :
         {0x1p-450, 0x1p-500, 0x1p-540, 0x1p-700, 0x1p-1000, 0x1p470, 0x1p700, 0x1p1020}) {
      INFO("times " << unit);
      const Measures m = compared(scaled(*answer, unit), scaled(expected, unit), options);
      CHECK(m.rms_ratio == Approx(one.rms_ratio).epsilon(1e-12));
      CHECK(m.bias == Approx(one.bias).epsilon(1e-9));
      CHECK(m.window_rms_ratio == Approx(one.window_rms_ratio).epsilon(1e-12));
      CHECK(m.head_rms_ratio == Approx(one.head_rms_ratio).epsilon(1e-12));
      CHECK(m.worst_head == one.worst_head);
      CHECK(m.window_token == one.window_token);
      CHECK(m.max_rel.value == Approx(one.max_rel.value).epsilon(1e-12));
      CHECK(m.differing == one.differing);
    }
  }
}

TEST_CASE("a tensor whose squares underflow does not pass for right, nor one of both kinds", "[judge]") {
  // Everything wrong by half; in the second half of the tensor all is ordinary and right.
  std::vector<double> got(64, 1.5e-170), expected(64, 1e-170);
  CHECK(compared(got, expected, DType::fp64).rms_ratio == Approx(0.5));
  CHECK(compared(got, expected, DType::fp64).bias == Approx(0.5));
  for (std::size_t i = 32; i < 64; ++i) got[i] = expected[i] = 1;
  const Measures mixed = compared(tensor_of("o", DType::fp64, {1, 64, 1, 1}, got),
                                  tensor_of("o", DType::fp64, {1, 64, 1, 1}, expected));
  CHECK(mixed.rms_ratio == Approx(0.5e-170));
  CHECK(mixed.window_rms_ratio == Approx(0.5));
  CHECK(compared({1.7e308, 1}, {-1.7e308, 1}, DType::fp64).max_abs.value == HUGE_VAL);
  CHECK(compared({1.7e308, 1}, {-1.7e308, 1}, DType::fp64).rms_ratio == HUGE_VAL);
}

TEST_CASE("tolerances count right where a share of the value is below the smallest number", "[judge]") {
  judge::ComparisonOptions options;
  options.rtol = 0.3;
  const double least = 0x1p-1074;
  const Measures m =
      compared(tensor_of("x", DType::fp64, {4}, {3 * least, 4 * least, 11 * least, 15 * least}),
               tensor_of("x", DType::fp64, {4}, {2 * least, 3 * least, 10 * least, 10 * least}), options);
  CHECK(m.outside == 3);  // by 0.4, 0.1 and 2 of the smallest number; one is inside
  CHECK(m.worst_excess.point.element == 3);
}

TEST_CASE(
    "half the smallest step is no error where single elements, windows and heads are related to their values",
    "[judge]") {
  // o [1, 16, 2, 4] in fp16, whose smallest step is 2^-24: ordinary but for one window of one head.
  const double step = 0x1p-24;
  const tensor::Shape shape{1, 16, 2, 4};
  std::vector<double> expected(tensor::element_count(shape), 1.0);
  for (std::size_t t = 0; t < 8; ++t)
    for (std::size_t i = 0; i < 8; ++i) expected[t * 8 + i] = (i % 2 == 0 ? 2.45 : -3.55) * step;
  judge::ComparisonOptions options;
  options.rtol = 1e-3;
  const Tensor right = tensor_of("o", DType::fp16, shape, expected);
  const Measures m = compared(right, tensor_of("o", DType::fp64, shape, expected), options);
  CHECK(m.differing == 0);
  CHECK(m.max_abs.value == Approx(0.45 * step));
  CHECK(m.max_rel.value == 0);
  CHECK(m.outside == 0);
  CHECK(m.window_rms_ratio == 0);
  CHECK(m.head_rms_ratio == 0);
  CHECK(m.rms_ratio > 0);  // of the whole its limit allows for it
  // A step more is one.
  std::vector<double> other = expected;
  for (std::size_t t = 0; t < 8; ++t) other[t * 8] = 3 * step;
  const Measures wrong = compared(tensor_of("o", DType::fp16, shape, other),
                                  tensor_of("o", DType::fp64, shape, expected), options);
  CHECK(wrong.max_rel.value == Approx(0.55 / 2.45));
  CHECK(wrong.outside == 8);
  CHECK(compared(tensor_of("o", DType::fp16, shape, std::vector<double>(expected.size(), 0.0)),
                 tensor_of("o", DType::fp64, shape, expected))
            .window_rms_ratio == Approx(1));
}

TEST_CASE("a non-finite oracle decides nothing", "[judge]") {
  const Tensor got = tensor_of("x", DType::fp32, {3}, {1, 2, 3});
  judge::ComparisonOptions options;
  options.against_oracle = true;
  Comparison comparison("x", got, false, false, options);
  const double hi[] = {1, not_a_number, HUGE_VAL}, lo[] = {0, 0, 0};
  comparison.add(0, 3, {hi, lo, nullptr});
  const Measures m = comparison.finish();
  CHECK(m.undecided == 2);
  CHECK(m.mismatched_classes() == 0);
  CHECK(m.finite == 1);
}

TEST_CASE("the scaled error divides by the place of the magnitude", "[judge]") {
  const Tensor got = tensor_of("x", DType::fp32, {2}, {1e-6, 1});
  Comparison comparison("x", got, false, true, {});
  const double hi[] = {1e-6 + 0x1p-23, 1}, lo[] = {0, 0}, magnitude[] = {1, 8};
  comparison.add(0, 2, {hi, lo, magnitude});
  const Measures m = comparison.finish();
  CHECK(m.scaled_ulp.value == Approx(1).epsilon(0.001));
  CHECK(m.scaled_ulp.point.magnitude == 1);
  CHECK(m.ulp_error.value > 1e5);
}

TEST_CASE("tolerances count the elements outside", "[judge]") {
  judge::ComparisonOptions options;
  options.atol = 0.1;
  options.rtol = 0.01;
  const Tensor got = tensor_of("x", DType::fp64, {4}, {1.05, 1.2, 100.5, 102});
  const Measures m = compared(got, tensor_of("x", DType::fp64, {4}, {1, 1, 100, 100}), options);
  CHECK(m.outside == 2);
  CHECK(m.worst_excess.point.element == 3);
}

TEST_CASE("percentiles of the steps are exact while they are small", "[judge]") {
  judge::DistanceHistogram histogram;
  for (std::uint64_t i = 0; i < 100; ++i) histogram.add(i < 90 ? 0 : i - 80);
  CHECK(histogram.percentile(0.5) == 0);
  CHECK(histogram.percentile(0.95) == 14);
  CHECK(histogram.percentile(1) == 19);
  judge::DistanceHistogram large;
  for (const std::uint64_t distance :
       {std::uint64_t{1000}, std::uint64_t{1} << 40, std::numeric_limits<std::uint64_t>::max()})
    large.add(distance);
  CHECK(large.percentile(0.3) == Approx(1000).epsilon(1.0 / 16));
  CHECK(large.percentile(0.6) == std::ldexp(1.0, 40));
  CHECK(large.percentile(1) == Approx(std::ldexp(1.0, 64)).epsilon(1.0 / 16));
}

TEST_CASE("windows and heads find where the error is", "[judge]") {
  // o [1, 20, 3, 2]: an error in token 13 of head 2.
  const std::size_t count = 20 * 3 * 2;
  std::vector<double> expected(count, 1.0), values(count, 1.0);
  values[(13 * 3 + 2) * 2 + 1] = 1.5;
  const Measures m = compared(tensor_of("o", DType::fp32, {1, 20, 3, 2}, values),
                              tensor_of("o", DType::fp32, {1, 20, 3, 2}, expected));
  CHECK(m.window_token == 8);
  CHECK(m.window_batch == 0);
  CHECK(m.window_rms_ratio == Approx(std::sqrt(0.25 / 48)));
  CHECK(m.worst_head == 2);
  CHECK(m.head_rms_ratio == Approx(std::sqrt(0.25 / 40)));
}

TEST_CASE("the worst points are listed in order, ties by position", "[judge]") {
  std::vector<double> expected(100, 1.0), values(100, 1.0);
  for (const std::size_t at : {70, 20, 50}) values[at] = 1 + 3 * 0x1p-23;
  values[90] = 1 + 9 * 0x1p-23;
  judge::ComparisonOptions options;
  options.worst = 3;
  const Measures m = compared(tensor_of("x", DType::fp32, {100}, values),
                              tensor_of("x", DType::fp32, {100}, expected), options);
  REQUIRE(m.worst.size() == 3);
  CHECK(m.worst[0].element == 90);
  CHECK(m.worst[1].element == 20);
  CHECK(m.worst[2].element == 50);
}

TEST_CASE("every metric of the list can be read", "[judge]") {
  const Measures m = compared({1, 2}, {1, 3});
  for (const judge::Metric& metric : judge::metrics()) {
    INFO(metric.name);
    CHECK(metric.value(m) >= (metric.name == "bias" ? -1 : 0));
    CHECK(judge::find_metric(metric.name) == &metric);
  }
  CHECK(judge::find_metric("no_such_metric") == nullptr);
}

}  // namespace comparison_tests
