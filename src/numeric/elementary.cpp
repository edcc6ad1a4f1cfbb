#include "numeric/elementary.hpp"

#include <cmath>
#include <limits>

#include "numeric/elementary_steps.hpp"
#include "numeric/exact_exponential.hpp"

namespace kda_check::numeric {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
/// Below this |x| the first term of a series is the rounded sum.
constexpr double negligible = 0x1p-54;

/// ln w for w in [1, 2], as 2 artanh((w - 1) / (w + 1)).
constexpr DoubleDouble logarithm_of(DoubleDouble w) {
  const DoubleDouble s = (w - DoubleDouble{1.0}) / (w + DoubleDouble{1.0}), square = s * s;
  DoubleDouble power = s, sum = s;
  for (int n = 3; n < 75; n += 2) {  // s <= 1/3: 3^-75 < 2^-118
    power = power * square;
    sum = sum + power / DoubleDouble{static_cast<double>(n)};
  }
  return sum + sum;
}

constexpr ElementaryTables make_tables() {
  ElementaryTables tables{};
  constexpr DoubleDouble root{0x1.0163da9fb3335p+0, 0x1.b61299ab8cdb7p-54};  // 2^(1/128)
  DoubleDouble power{1.0};
  for (int j = 0; j < 128; ++j) {
    tables.power_high[j] = power.hi, tables.power_low[j] = power.lo;
    power = power * root;
    const double C = j == 0 ? 1.0 : j == 127 ? 0.5 : 1 / (1 + (j + 0.5) / 128);
    const DoubleDouble logarithm =
        j == 0 ? DoubleDouble{} : logarithm_of(DoubleDouble{1.0} / DoubleDouble{C});
    constexpr double places = 0x1.8p10;  // adding it rounds to a multiple of 2^-42
    const double high = (logarithm.hi + places) - places;
    tables.reciprocal[j] = C;
    tables.logarithm_high[j] = high;
    tables.logarithm_low[j] = (logarithm.hi - high) + logarithm.lo;
  }
  return tables;
}

/// cos and sin of 2 pi j / 64.
struct Circle {
  DoubleDouble cosine[64], sine[64];
};

constexpr DoubleDouble two_pi{0x1.921fb54442d18p+2, 0x1.1a62633145c07p-52};

constexpr Circle make_circle() {
  // Of one step by Taylor's series; the others turn it on.
  const DoubleDouble angle = two_pi * 0x1p-6, square = angle * angle;
  DoubleDouble cosine{1.0}, sine = angle, term_of_cosine{1.0}, term_of_sine = angle;
  for (int n = 2; n < 26; n += 2) {
    term_of_cosine = -(term_of_cosine * square) / DoubleDouble{static_cast<double>(n * (n - 1))};
    term_of_sine = -(term_of_sine * square) / DoubleDouble{static_cast<double>(n * (n + 1))};
    cosine = cosine + term_of_cosine;
    sine = sine + term_of_sine;
  }
  Circle circle{};
  DoubleDouble c{1.0}, s{0.0};
  // An eighth of the circle; the rest are reflections, exact zeros and ones among them.
  for (int j = 0; j <= 8; ++j) {
    const auto set = [&](int at, DoubleDouble x, DoubleDouble y) {
      circle.cosine[at & 63] = x, circle.sine[at & 63] = y;
    };
    set(j, c, s), set(-j, c, -s), set(32 - j, -c, s), set(32 + j, -c, -s);
    set(16 - j, s, c), set(16 + j, -s, c), set(48 + j, s, -c), set(48 - j, -s, -c);
    const DoubleDouble next = c * cosine - s * sine;
    s = s * cosine + c * sine;
    c = next;
  }
  return circle;
}
constexpr Circle circle = make_circle();

/// The logarithm of u, rounded, from a step that leaves it open between two numbers.
double decided_logarithm(const detail::LogStep<double>& step, DoubleDouble u) {
  const DoubleDouble sum = quick_two_sum(step.hi, step.lo);
  const double other = std::nextafter(sum.hi, sum.lo > 0 ? infinity : -infinity);
  const bool larger = exact::exp_is_below({sum.hi, (other - sum.hi) / 2}, u);
  return larger == (other > sum.hi) ? other : sum.hi;
}

double rounded_logarithm(DoubleDouble u) {
  const detail::LogStep<double> step = detail::log_terms(u.hi, u.lo);
  const auto rounded = detail::rounded_surely(step.hi, step.lo, step.error);
  return rounded.sure ? rounded.value : decided_logarithm(step, u);
}

/// ln x in double-double, to 2^-70, x positive, finite and not 1.
DoubleDouble logarithm_terms(double x) {
  constexpr double up = 0x1p54;
  constexpr DoubleDouble ln2{0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};
  const bool is_small = x < std::numeric_limits<double>::min();
  const detail::LogStep<double> step = detail::log_terms(is_small ? x * up : x, 0.0);
  const DoubleDouble sum = quick_two_sum(step.hi, step.lo);
  return is_small ? sum - ln2 * 54.0 : sum;
}

constexpr ElementaryTables tables = make_tables();

}  // namespace

const ElementaryTables elementary_tables = tables;

double exp(double x) {
  const double size = std::fabs(x);
  if (size <= 708) {
    if (size < negligible) return 1;
    const auto step = exp_step(x);
    return step.sure ? step.value : exact::exp(x);
  }
  if (std::isnan(x)) return x;
  if (x > 710) return infinity;
  return x < -746 ? 0.0 : exact::exp(x);
}

double exp2(double x) {
  const double size = std::fabs(x);
  if (size <= 1021) {
    if (size < negligible) return 1;
    const auto step = exp2_step(x);
    return step.sure || x == std::floor(x) ? step.value : exact::exp2(x);
  }
  if (std::isnan(x)) return x;
  if (x >= 1024) return infinity;
  if (x <= -1075) return 0;
  return x == std::floor(x) ? std::ldexp(1.0, static_cast<int>(x)) : exact::exp2(x);
}

double log(double x) {
  if (!(x > 0)) return x == 0 ? -infinity : std::isnan(x) ? x : nan;
  if (x == infinity || x == 1) return x == 1 ? 0.0 : x;
  if (x >= std::numeric_limits<double>::min()) return rounded_logarithm({x, 0.0});
  const DoubleDouble y = logarithm_terms(x);
  const detail::LogStep<double> step{y.hi, y.lo, 0x1p-60};
  const auto rounded = detail::rounded_surely(step.hi, step.lo, step.error);
  return rounded.sure ? rounded.value : decided_logarithm(step, {x, 0.0});
}

double log1p(double x) {
  if (!(x > -1)) return x == -1 ? -infinity : std::isnan(x) ? x : nan;
  if (std::fabs(x) < negligible || x == infinity) return x;
  return rounded_logarithm(x < 0x1p900 ? two_sum(1.0, x) : DoubleDouble{x, 0.0});
}

double log2(double x) {
  if (!(x > 0) || x == infinity || x == 1) return log(x);
  return (logarithm_terms(x) * DoubleDouble{0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56}).hi;
}

double power(double x, double y) { return x == 1 ? 1.0 : exp(logarithm_terms(x) * y).hi; }

double root_of_squares(double a, double b) {
  const DoubleDouble sum = two_product(a, a) + two_product(b, b);
  if (sum.hi == 0) return 0;
  const double root = std::sqrt(sum.hi);
  return root + ((sum.hi - root * root) + (-fma(root, root, -(root * root)) + sum.lo)) / (2 * root);
}

double cosine(double x) {
  // The high part has 40 bits: j times it is exact, and so is the difference.
  constexpr double places = 0x1.8p9, high = (two_pi.hi / 64 + places) - places;
  constexpr double low = (two_pi.hi / 64 - high) + two_pi.lo / 64;
  const double step = round_to_integer(x * (64 / two_pi.hi));
  const auto j = static_cast<std::size_t>(static_cast<long>(step) & 63);
  const DoubleDouble angle = two_sum(x - step * high, -step * low);
  const DoubleDouble square = two_product(angle.hi, angle.hi);
  const double s = square.hi;
  // sin t = t + t^3 p, cos t = 1 - t^2 / 2 + t^4 q, |t| < 0.05
  const double p = -1.0 / 6 + s * (1.0 / 120 + s * (-1.0 / 5040 + s / 362880));
  const double q = 1.0 / 24 + s * (-1.0 / 720 + s * (1.0 / 40320 - s / 3628800));
  const DoubleDouble c = circle.cosine[j], sine = circle.sine[j];
  const DoubleDouble linear = two_product(-sine.hi, angle.hi), bent = two_product(c.hi, -0.5 * s);
  const DoubleDouble first = two_sum(c.hi, linear.hi), second = two_sum(first.hi, bent.hi);
  const double small = c.hi * (s * s * q - 0.5 * square.lo - angle.hi * angle.lo) -
                       sine.hi * (angle.hi * s * p + angle.lo) - sine.lo * angle.hi + c.lo;
  return second.hi + (second.lo + (first.lo + (linear.lo + (bent.lo + small))));
}

}  // namespace kda_check::numeric
