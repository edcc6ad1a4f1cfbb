// The correctly rounded functions against MPFR, which rounds correctly too: random arguments over the whole
// range, hard cases and special values; and the first steps' bounds.
#include "numeric/elementary.hpp"

#include <mpfr.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/threads/parallel.hpp"
#include "numeric/elementary_steps.hpp"
#include "numeric/exact_exponential.hpp"
#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace elementary_tests {

using namespace kda_check;
using test::Random;

namespace {

constexpr double inf = HUGE_VAL;
const double none = std::nan("");

using MpfrFunction = int (*)(mpfr_t, const mpfr_t, mpfr_rnd_t);

/// f(x) rounded once to fp64, gradual underflow included.
double rounded(MpfrFunction f, double x) {
  // Of every thread its own; doubles have exponents of this range in MPFR's way to count.
  mpfr_set_emin(-1073), mpfr_set_emax(1024);
  mpfr_t argument, value;
  mpfr_init2(argument, 53), mpfr_init2(value, 53);
  mpfr_set_d(argument, x, MPFR_RNDN);
  const int inexact = f(value, argument, MPFR_RNDN);
  mpfr_subnormalize(value, inexact, MPFR_RNDN);
  const double result = mpfr_get_d(value, MPFR_RNDN);
  mpfr_clear(argument), mpfr_clear(value);
  mpfr_set_emin(mpfr_get_emin_min()), mpfr_set_emax(mpfr_get_emax_max());
  return result;
}

struct Function {
  const char* name;
  double (*ours)(double);
  MpfrFunction mpfr;
  double least, most;  ///< where its values are numbers
};
const Function functions[] = {{"exp", numeric::exp, mpfr_exp, -746, 710},
                              {"exp2", numeric::exp2, mpfr_exp2, -1076, 1025},
                              {"log", numeric::log, mpfr_log, 0, 1e308},
                              {"log1p", numeric::log1p, mpfr_log1p, -1, 1e308}};

/// Of all sizes, with what the function is for taking the larger share.
double argument(Random& random, const Function& f) {
  const std::size_t kind = random.below(8);
  const double sign = f.least < 0 && random.below(2) == 0 ? -1 : 1;
  const auto size = [&](int least, int most) {
    return std::ldexp(random.uniform(1, 2),
                      least + static_cast<int>(random.below(static_cast<std::size_t>(most - least))));
  };
  double x = 0;
  if (kind < 3)
    x = random.uniform(std::fmax(f.least, -746), std::fmin(f.most, 745));
  else if (kind < 5)
    x = sign * size(-60, 4);
  else if (kind == 5)
    x = sign * size(-1074, 1023);
  else if (kind == 6)
    x = 1 + sign * size(-53, -1);
  else
    x = sign * (static_cast<double>(random.below(2000)) / 128 + size(-60, -20));
  return std::fmin(std::fmax(x, f.least), f.most);
}

bool same(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

/// Arguments whose functions are near the middle of two numbers, or near the ends of the range.
std::vector<double> hard_arguments(const Function& f) {
  // exp of the first, the second and, at a number instead of a middle, the third: 58 and 59 bits agree after
  // those that are kept; of 2^x so do 60 of the fourth.
  std::vector<double> list{-0x1.12d31a20fb38bp+5, 0x1.9e9cbbfd6080bp-31, 0x1.83d4bcdebb3f4p+2,
                           0x1.e4596526bf94dp-10};
  // Series of small numbers agree with a middle for the longer, the smaller they are: 1 + x + x^2 / 2 with x
  // half a last place does to 107 bits.
  for (int power = -56; power < -20; ++power)
    for (const double factor : {1.0, 1 + 0x1p-52, 2 - 0x1p-52, 1.5, 1.25, 1 + 0x1p-26, 1 + 0x1p-27, 1.75})
      for (const double sign : {1.0, -1.0}) {
        list.push_back(sign * std::ldexp(factor, power));
        list.push_back(1 + sign * std::ldexp(factor, power));
      }
  for (const double edge : {709.782712893384, -745.1332191019411, -708.3964185322641, 1024.0, -1022.0,
                            -1074.0, -1075.0, 708.0, 1021.0, 0x1p900, 36.7, 37.4, 0x1p-1022, 0.02})
    for (int step = -6; step <= 6; ++step)
      for (const double sign : {1.0, -1.0})
        list.push_back(std::bit_cast<double>(std::bit_cast<std::int64_t>(sign * edge) + step));
  std::erase_if(list, [&](double x) { return x < f.least; });
  return list;
}

}  // namespace

TEST_CASE("exp, exp2, log and log1p are correctly rounded: a million arguments of each", "[elementary]") {
  constexpr std::size_t items = 100, each = 10'000;
  for (const Function& f : functions) {
    INFO(f.name);
    std::vector<std::size_t> wrong(items);
    parallel_for(items, available_threads(), [&](std::size_t item, int) {
      Random random(item + 1);
      for (std::size_t i = 0; i < each; ++i) {
        const double x = argument(random, f);
        wrong[item] += !same(f.ours(x), rounded(f.mpfr, x));
      }
    });
    std::size_t total = 0;
    for (const std::size_t count : wrong) total += count;
    CHECK(total == 0);
  }
}

TEST_CASE("the hard cases of the elementary functions are correctly rounded", "[elementary]") {
  for (const Function& f : functions)
    for (const double x : hard_arguments(f)) {
      INFO(f.name << " of " << std::hexfloat << x);
      CHECK(same(f.ours(x), rounded(f.mpfr, x)));
    }
}

TEST_CASE("special values of the elementary functions", "[elementary]") {
  struct Row {
    double (*f)(double);
    double x, y;
  };
  using namespace numeric;
  const Row rows[] = {{numeric::exp, inf, inf},     {numeric::exp, -inf, 0},
                      {numeric::exp, none, none},   {numeric::exp, 0, 1},
                      {numeric::exp, -0.0, 1},      {numeric::exp, 1e300, inf},
                      {numeric::exp, -1e300, 0},    {numeric::exp2, inf, inf},
                      {numeric::exp2, -inf, 0},     {numeric::exp2, none, none},
                      {numeric::exp2, 10, 1024},    {numeric::exp2, -1074, 0x1p-1074},
                      {numeric::exp2, -1075, 0},    {numeric::exp2, 1023, 0x1p1023},
                      {numeric::log, inf, inf},     {numeric::log, 0, -inf},
                      {numeric::log, -0.0, -inf},   {numeric::log, -1, none},
                      {numeric::log, -inf, none},   {numeric::log, none, none},
                      {numeric::log, 1, 0},         {numeric::log1p, inf, inf},
                      {numeric::log1p, -1, -inf},   {numeric::log1p, -2, none},
                      {numeric::log1p, -inf, none}, {numeric::log1p, none, none},
                      {numeric::log1p, 0, 0},       {numeric::log1p, -0.0, -0.0},
                      {numeric::log2, 8, 3},        {numeric::log2, 0x1p-1074, -1074},
                      {numeric::log2, 0, -inf},     {numeric::log2, 1, 0}};
  for (const Row& row : rows) {
    INFO("of " << row.x << ", wanted " << row.y);
    CHECK(same(row.f(row.x), row.y));
  }
}

TEST_CASE("the first steps err by less than half of what they allow for", "[elementary]") {
  Random random(41);
  double worst_exp = 0, worst_exp2 = 0, worst_log = 0, worst_log1p = 0;
  using numeric::detail::LogStep;
  using numeric::detail::PowerTerms;
  const auto of_power = [](const PowerTerms<double>& terms, const test::Big& exact) {
    const test::Big scale(numeric::power_from_bits<7>(terms.shifted));
    const test::Big value = test::Big(terms.hi) + test::Big(terms.lo);
    return abs(value - exact / scale).to_double() / numeric::detail::power_error;
  };
  const auto of_log = [](const LogStep<double>& step, const test::Big& exact) {
    return abs(test::Big(step.hi) + test::Big(step.lo) - exact).to_double() / step.error;
  };
  for (int i = 0; i < 200'000; ++i) {
    const double x = i % 2 == 0 ? random.uniform(-708, 708) : random.uniform(-1, 1);
    worst_exp = std::max(worst_exp, of_power(numeric::detail::exp_terms(x), exp(test::Big(x))));
    worst_exp2 = std::max(worst_exp2, of_power(numeric::detail::exp2_terms(x), exp2(test::Big(x))));
    const double size =
        std::ldexp(random.uniform(1, 2),
                   static_cast<int>(random.below(i % 3 == 0 ? 1800 : 40)) - (i % 3 == 0 ? 900 : 30));
    const double u = i % 5 == 0 ? random.uniform(0.98, 1.02) : size;
    worst_log = std::max(worst_log, of_log(numeric::detail::log_terms(u, 0.0), log(test::Big(u))));
    const numeric::DoubleDouble sum = numeric::two_sum(1.0, size);
    worst_log1p =
        std::max(worst_log1p, of_log(numeric::detail::log_terms(sum.hi, sum.lo), log1p(test::Big(size))));
  }
  for (const double worst : {worst_exp, worst_exp2, worst_log, worst_log1p}) {
    CHECK(worst < 0.5);
    CHECK(worst > 0.001);  // and are not far from what is allowed
  }
}

TEST_CASE("the exact exponential alone is correctly rounded, and tells on which side of a number it is",
          "[elementary]") {
  Random random(42);
  for (int i = 0; i < 20'000; ++i) {
    const double x = i % 2 == 0 ? random.uniform(-745.2, 709.7)
                                : std::ldexp(random.uniform(-2, 2), -static_cast<int>(random.below(54)));
    if (std::fabs(x) < 0x1p-54) continue;
    REQUIRE(numeric::exact::exp(x) == rounded(mpfr_exp, x));
    REQUIRE(numeric::exact::exp2(x) == rounded(mpfr_exp2, x));
    if (x < -600) continue;
    // exp(x) to 106 bits, a little less and a little more.
    const test::Big truth = exp(test::Big(x));
    const double hi = truth.to_double(), lo = (truth - test::Big(hi)).to_double();
    const double apart = hi * 0x1p-100;
    CHECK(numeric::exact::exp_is_below({x, 0.0}, {hi, lo + apart}));
    CHECK_FALSE(numeric::exact::exp_is_below({x, 0.0}, {hi, lo - apart}));
  }
}

TEST_CASE("binary logarithms, powers, roots and cosines are off by half a place and a thousandth",
          "[elementary]") {
  Random random(43);
  const auto ulps = [](double got, const test::Big& exact, double least = 0) {
    const double unit = std::ldexp(1.0, std::ilogb(std::fmax(std::fabs(exact.to_double()), least)) - 52);
    return abs(test::Big(got) - exact).to_double() / unit;
  };
  double worst = 0;
  const test::Big ln2 = log(test::Big(2.0));
  for (int i = 0; i < 50'000; ++i) {
    const double x = std::ldexp(random.uniform(1, 2), static_cast<int>(random.below(200)) - 100);
    worst = std::max(worst, ulps(numeric::log2(x), log(test::Big(x)) / ln2));
    const double y = random.uniform(-1, 1);
    worst = std::max(worst, ulps(numeric::power(x, y), exp(test::Big(y) * log(test::Big(x)))));
    const double a = random.normal(), b = random.normal();
    worst = std::max(worst, ulps(numeric::root_of_squares(a, b),
                                 sqrt(test::Big(a) * test::Big(a) + test::Big(b) * test::Big(b))));
    const double angle = random.uniform(-8, 8);
    worst = std::max(worst, ulps(numeric::cosine(angle), cos(test::Big(angle)), 0x1p-10));
  }
  CHECK(worst < 0.501);
  CHECK(numeric::cosine(0) == 1);
  CHECK(numeric::root_of_squares(3, 4) == 5);
  CHECK(numeric::root_of_squares(0, 0) == 0);
  CHECK(numeric::power(1, 0.3) == 1);
}

}  // namespace elementary_tests
