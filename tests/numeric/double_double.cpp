#include <cmath>
#include <limits>

#include "numeric/double_double_functions.hpp"
#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace double_double_tests {

using namespace kda_check;
using namespace kda_check::numeric;
using test::Big;

namespace {

DoubleDouble random_number(test::Random& random, int exponents) {
  const double hi =
      std::ldexp(random.uniform(-2, 2),
                 static_cast<int>(random.below(static_cast<std::size_t>(2 * exponents))) - exponents);
  return two_sum(hi, hi * 0x1p-54 * random.uniform(-1, 1));
}

/// The largest relative error of f over numbers drawn by `draw`.
template <class Function, class Truth, class Draw>
double worst_error(Function f, Truth truth, Draw draw, int count = 20'000) {
  double worst = 0;
  for (int i = 0; i < count; ++i) {
    const DoubleDouble x = draw();
    worst = std::max(worst, test::relative_error(f(x), truth(Big(x))));
  }
  return worst;
}

}  // namespace

TEST_CASE("double-double operations keep the error bounds their headers state", "[double-double]") {
  test::Random random(1);
  double sum = 0, product = 0, quotient = 0, times_double = 0;
  for (int i = 0; i < 100'000; ++i) {
    const DoubleDouble a = random_number(random, 30), b = random_number(random, 30);
    sum = std::max(sum, test::relative_error(a + b, Big(a) + Big(b)));
    product = std::max(product, test::relative_error(a * b, Big(a) * Big(b)));
    quotient = std::max(quotient, test::relative_error(a / b, Big(a) / Big(b)));
    times_double = std::max(times_double, test::relative_error(a * b.hi, Big(a) * Big(b.hi)));
  }
  constexpr double u2 = 0x1p-106;
  CHECK(sum <= 3.1 * u2);
  CHECK(product <= 5 * u2);
  CHECK(times_double <= 2 * u2);
  CHECK(quotient <= 10 * u2);
}

TEST_CASE("the multiply-add of constants rounds once, as the instruction does", "[double-double]") {
  test::Random random(3);
  for (int i = 0; i < 100'000; ++i) {
    const double a = random_number(random, 30).hi, b = random_number(random, 30).hi;
    const DoubleDouble product = two_product(a, b);
    // Sums that cancel to the last bits of the product are those that two roundings get wrong.
    const double far = random_number(random, 90).hi,
                 near = -product.hi * (1 + 0x1p-52 * random.uniform(-4, 4));
    for (const double c :
         {far, near, -product.hi, product.lo, product.hi * 0x1p53, product.hi * 0x1p-54, 0.0})
      if (detail::constant_fma(a, b, c) != std::fma(a, b, c)) FAIL(a << " * " << b << " + " << c);
  }
}

TEST_CASE("double-double exp is exact to 100 bits from underflow to overflow", "[double-double]") {
  test::Random random(2);
  const auto f = [](DoubleDouble x) { return exp(x); };
  const auto truth = [](const Big& x) { return exp(x); };
  const auto between = [&](double from, double to) {
    return [&random, from, to] {
      const double hi = random.uniform(from, to);
      return two_sum(hi, hi * 0x1p-54 * random.uniform(-1, 1));
    };
  };
  CHECK(worst_error(f, truth, between(-1, 1)) < 0x1p-100);
  CHECK(worst_error(f, truth, between(-20, 20)) < 0x1p-100);
  CHECK(worst_error(f, truth, between(-600, 700)) < 0x1p-100);
  CHECK(worst_error(f, truth, [&] {
          return DoubleDouble{std::ldexp(random.uniform(-1, 1), -static_cast<int>(random.below(60)))};
        }) < 0x1p-100);
  CHECK(exp(DoubleDouble{0.0}).hi == 1.0);
  CHECK(exp(DoubleDouble{0.0}).lo == 0.0);
  CHECK(exp(DoubleDouble{-746.0}).hi == 0.0);
  CHECK(exp(DoubleDouble{-HUGE_VAL}).hi == 0.0);
  CHECK_FALSE(std::isfinite(exp(DoubleDouble{710.0}).hi));
  CHECK(std::isnan(exp(DoubleDouble{std::nan("")}).hi));
}

TEST_CASE("double-double softplus, sigmoid and log1p keep their relative accuracy everywhere",
          "[double-double]") {
  test::Random random(3);
  const auto wide = [&] { return DoubleDouble{random.uniform(-300, 60)}; };
  const auto near_zero = [&] {
    return DoubleDouble{std::ldexp(random.uniform(-1, 1), -static_cast<int>(random.below(40)))};
  };
  const auto soft = [](DoubleDouble x) { return softplus(x); };
  const auto soft_truth = [](const Big& x) { return test::softplus(x); };
  CHECK(worst_error(soft, soft_truth, wide) < 0x1p-99);
  CHECK(worst_error(soft, soft_truth, near_zero) < 0x1p-99);
  const auto logistic = [](DoubleDouble x) { return sigmoid(x); };
  const auto logistic_truth = [](const Big& x) { return test::sigmoid(x); };
  CHECK(worst_error(logistic, logistic_truth, wide) < 0x1p-99);
  CHECK(worst_error(logistic, logistic_truth, near_zero) < 0x1p-99);
  const auto unit = [&] {
    return DoubleDouble{random.below(2) ? random.uniform()
                                        : std::ldexp(random.uniform(), -static_cast<int>(random.below(200)))};
  };
  CHECK(worst_error([](DoubleDouble x) { return log1p_unit(x); }, [](const Big& x) { return log1p(x); },
                    unit) < 0x1p-102);
}

TEST_CASE("double-double functions have their limits at infinities, and NaN where there is none",
          "[double-double]") {
  constexpr double inf = HUGE_VAL, huge = std::numeric_limits<double>::max();
  const double nan = std::nan("");
  struct Row {
    const char* name;
    DoubleDouble (*f)(double);
    double x, expected;
  };
  const auto exponential = [](double x) { return exp(DoubleDouble{x}); };
  const auto soft = [](double x) { return softplus(DoubleDouble{x}); };
  const auto logistic = [](double x) { return sigmoid(DoubleDouble{x}); };
  const Row rows[] = {
      {"exp", exponential, inf, inf},  {"exp", exponential, -inf, 0},   {"exp", exponential, huge, inf},
      {"exp", exponential, -huge, 0},  {"exp", exponential, nan, nan},  {"exp", exponential, 709.79, inf},
      {"softplus", soft, inf, inf},    {"softplus", soft, -inf, 0},     {"softplus", soft, huge, huge},
      {"softplus", soft, -huge, 0},    {"softplus", soft, nan, nan},    {"softplus", soft, 801, 801},
      {"sigmoid", logistic, inf, 1},   {"sigmoid", logistic, -inf, 0},  {"sigmoid", logistic, huge, 1},
      {"sigmoid", logistic, -huge, 0}, {"sigmoid", logistic, nan, nan},
  };
  for (const Row& row : rows) {
    INFO(row.name << " of " << row.x);
    const DoubleDouble y = row.f(row.x);
    CHECK((y.hi == row.expected || (std::isnan(y.hi) && std::isnan(row.expected))));
    if (!std::isnan(row.expected)) CHECK(y.lo == 0);
  }
}

TEST_CASE("exp as a factor is right wherever the product is in range, and has its limits",
          "[double-double]") {
  test::Random random(5);
  double worst = 0;
  for (int i = 0; i < 20'000; ++i) {
    const double a = random.uniform(-1400, 1400);
    // A product between 2^-900 and 2^1000, whatever the factor: within what a double can hold.
    const double exponent = random.uniform(-900, 1000) - a / std::log(2.0);
    if (exponent < -1000 || exponent > 1000) continue;
    const double size = std::ldexp(random.uniform(1, 2), static_cast<int>(exponent));
    const DoubleDouble y = two_sum(random.below(2) == 0 ? size : -size, size * 0x1p-55);
    worst = std::max(worst, test::relative_error(ExpFactor<double>(a) * y, exp(Big(a)) * Big(y)));
  }
  CHECK(worst < 0x1p-99);
  CHECK(worst > 0);
  constexpr double inf = HUGE_VAL;
  const double nan = std::nan("");
  const double rows[][3] = {
      {inf, 2, inf},           {inf, -2, -inf},    {inf, 0, nan},     {-inf, 2, 0},    {-inf, inf, nan},
      {800, 1, inf},           {800, 0, 0},        {800, -inf, -inf}, {-800, 1, 0},    {-800, inf, inf},
      {1e300, 0x1p-1074, inf}, {-1e300, 1e308, 0}, {nan, 1, nan},     {nan, inf, nan}, {1, nan, nan},
      {inf, nan, nan},         {0, inf, inf},      {0, 3, 3}};
  for (const auto& [a, y, expected] : rows) {
    INFO("exp(" << a << ") * " << y);
    const DoubleDouble product = ExpFactor<double>(a) * DoubleDouble{y};
    CHECK((product.hi == expected || (std::isnan(product.hi) && std::isnan(expected))));
    if (!std::isnan(expected)) CHECK(product.lo == 0);
  }
  // Subnormals have all their bits as factors.
  CHECK((ExpFactor<double>(740) * DoubleDouble{0x1.8p-1072}).hi ==
        (exp(Big(740.0)) * Big(0x1.8p-1072)).to_double());
}

TEST_CASE("double-double reciprocal square root is exact to 102 bits", "[double-double]") {
  test::Random random(4);
  CHECK(worst_error([](DoubleDouble x) { return reciprocal_square_root(x); },
                    [](const Big& x) { return Big(1.0) / sqrt(x); },
                    [&] {
                      return DoubleDouble{
                          std::ldexp(random.uniform(1, 2), static_cast<int>(random.below(200)) - 100)};
                    }) < 0x1p-102);
}

}  // namespace double_double_tests
