#include <cmath>

#include "numeric/double_double_functions.hpp"
#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

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

TEST_CASE("double-double reciprocal square root is exact to 102 bits", "[double-double]") {
  test::Random random(4);
  CHECK(worst_error([](DoubleDouble x) { return reciprocal_square_root(x); },
                    [](const Big& x) { return Big(1.0) / sqrt(x); },
                    [&] {
                      return DoubleDouble{
                          std::ldexp(random.uniform(1, 2), static_cast<int>(random.below(200)) - 100)};
                    }) < 0x1p-102);
}
