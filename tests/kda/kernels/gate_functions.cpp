// The gates and their derivatives far out: against MPFR where the result is a number, against their limits
// where it is not.
#include "kda/kernels/truth/gate_functions.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kda/kernels/table.hpp"
#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace gate_functions_tests {

using namespace kda_check;
using numeric::DoubleDouble;
using test::Big;
using Gate = kda::GateFunctions<double>;

namespace {

constexpr double inf = HUGE_VAL, huge = std::numeric_limits<double>::max(), bound = -5;
const double none = std::nan("");

struct Function {
  const char* name;
  DoubleDouble (*ours)(double a, double y);
  Big (*exact)(const Big& a, const Big& y);
};
Big slope_of_sigmoid(const Big& x) { return test::sigmoid(x) * test::sigmoid(-x); }

enum Which { softplus, softplus_slope, bounded, bounded_slope, bounded_amplitude_slope };
const Function functions[] = {
    {"-A softplus(y)", [](double a, double y) { return Gate(a).softplus(DoubleDouble{y}); },
     [](const Big& a, const Big& y) { return -(exp(a) * test::softplus(y)); }},
    {"-A sigmoid(y)", [](double a, double y) { return Gate(a).softplus_slope(DoubleDouble{y}); },
     [](const Big& a, const Big& y) { return -(exp(a) * test::sigmoid(y)); }},
    {"bound sigmoid(A y)", [](double a, double y) { return Gate(a).bounded(DoubleDouble{y}, bound); },
     [](const Big& a, const Big& y) { return Big(bound) * test::sigmoid(exp(a) * y); }},
    {"its slope by y", [](double a, double y) { return Gate(a).bounded_slope(DoubleDouble{y}, bound); },
     [](const Big& a, const Big& y) { return Big(bound) * exp(a) * slope_of_sigmoid(exp(a) * y); }},
    {"its slope by a",
     [](double a, double y) { return Gate(a).bounded_amplitude_slope(DoubleDouble{y}, bound); },
     [](const Big& a, const Big& y) { return Big(bound) * exp(a) * y * slope_of_sigmoid(exp(a) * y); }},
};

bool is(double value, double expected) {
  return value == expected || (std::isnan(value) && std::isnan(expected));
}

}  // namespace

TEST_CASE("gates and their slopes are exact however far out, where the result is a normal number",
          "[gates]") {
  test::Random random(21);
  for (const Function& function : functions) {
    INFO(function.name);
    double worst = 0;
    int compared = 0;
    for (int i = 0; i < 20'000; ++i) {
      const double a = i % 2 == 0 ? random.uniform(-5, 5) : random.uniform(-900, 900);
      // Around where A y, or exp(a + y), is of ordinary size, and anywhere.
      const double near = i % 4 < 2 ? -a + random.uniform(-40, 40) : random.uniform(-900, 900);
      const double along = std::exp(std::fmin(700, std::fmax(-700, -a))) * random.uniform(-800, 800);
      const double y = i % 3 == 0 ? along : near;
      const Big exact = function.exact(Big(a), Big(y));
      const double size = std::fabs(exact.to_double());
      if (!(size > 0x1p-900 && size < 0x1p1000)) continue;
      worst = std::max(worst, test::relative_error(function.ours(a, y), exact));
      ++compared;
    }
    CHECK(compared > 4000);
    // exp(-|x|) carries the rounding of x = A y, 800 times u^2 at most.
    CHECK(worst < 0x1p-91);
  }
}

TEST_CASE("gates and their slopes have their limits at infinities, and NaN where there is none", "[gates]") {
  struct Row {
    Which which;
    double a, y, expected;
  };
  const Row rows[] = {
      {softplus, 0, inf, -inf},
      {softplus, 0, -inf, 0},
      {softplus, 0, huge, -huge},
      {softplus, 1, huge, -inf},
      {softplus, 0, -huge, 0},
      {softplus, 800, 1, -inf},  // exp(800) is beyond fp64, its product with 1.3 as well
      {softplus, 800, -inf, 0},
      {softplus, -800, 1, 0},
      {softplus, -800, inf, -inf},
      {softplus, inf, 1, -inf},
      {softplus, inf, -1e9, -inf},
      {softplus, inf, -inf, none},
      {softplus, -inf, 1, 0},
      {softplus, -inf, inf, none},
      {softplus, none, 1, none},
      {softplus, 0, none, none},
      {softplus_slope, 0, inf, -1},
      {softplus_slope, 0, -inf, 0},
      {softplus_slope, 800, 1, -inf},
      {softplus_slope, 800, -inf, 0},
      {softplus_slope, -800, inf, 0},
      {softplus_slope, inf, 1, -inf},
      {softplus_slope, inf, -inf, none},
      {softplus_slope, -inf, inf, 0},
      {softplus_slope, 0, none, none},
      {bounded, 0, inf, bound},
      {bounded, 0, -inf, 0},
      {bounded, 800, 1, bound},
      {bounded, 800, -1, 0},
      {bounded, 800, 0, bound / 2},
      {bounded, -800, inf, bound},
      {bounded, -800, 1, bound / 2},
      {bounded, inf, 1, bound},
      {bounded, inf, -1, 0},
      {bounded, inf, 0, none},
      {bounded, -inf, 1, bound / 2},
      {bounded, -inf, inf, none},
      {bounded, 0, none, none},
      {bounded_slope, 0, inf, 0},
      {bounded_slope, 0, -inf, 0},
      {bounded_slope, 0, huge, 0},
      {bounded_slope, 800, 1, 0},
      {bounded_slope, 800, 0, -inf},
      {bounded_slope, inf, 1, 0},
      {bounded_slope, inf, 0, none},
      {bounded_slope, -inf, 1, 0},
      {bounded_slope, 0, none, none},
      {bounded_amplitude_slope, 0, inf, 0},
      {bounded_amplitude_slope, 0, -inf, 0},
      {bounded_amplitude_slope, 800, 0, 0},
      {bounded_amplitude_slope, 800, 1, 0},
      {bounded_amplitude_slope, -inf, 1, 0},
      {bounded_amplitude_slope, 0, none, none},
  };
  const kda::KernelTables tables = kda::kernel_tables();
  for (const Row& row : rows) {
    INFO(functions[row.which].name << ", a = " << row.a << ", y = " << row.y);
    const DoubleDouble value = functions[row.which].ours(row.a, row.y);
    CHECK(is(value.hi, row.expected));
    if (std::isinf(row.expected)) CHECK(value.lo == 0);
    if (row.which == bounded_amplitude_slope) continue;
    // The kernels of every instruction set, the bias taking part: y = g + bias.
    const bool is_slope = row.which == softplus_slope || row.which == bounded_slope;
    const bool is_bounded = row.which == bounded || row.which == bounded_slope;
    for (int i = 0; i < tables.count; ++i)
      for (const double bias : {0.0, 7.0}) {
        const double g = std::isfinite(row.y) ? row.y - bias : row.y;
        if (std::isfinite(row.y) && g + bias != row.y) continue;
        std::vector<double> hi(11, g), lo(11, 0.0), biases(11, bias), zeros(11, 0.0);
        const kda::OracleKernels& oracle = tables.table[i]->oracle;
        (is_slope ? oracle.gate_slope : oracle.gate)(
            {hi.size(), {hi.data(), lo.data()}, {biases.data(), zeros.data()}, row.a, is_bounded, bound});
        for (const double x : hi) CHECK(is(x, row.expected));
      }
  }
}

TEST_CASE("decays rounded at once are the high parts of the double-double ones, on every instruction set",
          "[gates]") {
  enum Kind { stored, softplus_gate, bounded_gate };
  test::Random random(std::random_device{}());
  std::size_t ordinary = 0;
  for (int row = 0; row < 400; ++row) {
    const Kind kind = Kind(row % 3);
    const bool has_bias = kind != stored && row % 2 == 1;
    // Everyday gates, and all that there are: of every size, zero, infinite, none.
    const bool is_everyday = row % 4 < 2;
    const auto drawn = [&](double size) {
      const double values[] = {0, -0.0, inf, -inf, none, huge, 0x1p-1074, size * random.normal()};
      const double far = std::ldexp(random.uniform(-1, 1), static_cast<int>(random.below(2000)) - 1000);
      return is_everyday ? size * random.normal() : random.below(2) == 0 ? far : values[random.below(8)];
    };
    constexpr std::size_t count = 77;
    std::vector<double> raw(count), bias(count), zeros(count);
    for (std::size_t i = 0; i < count; ++i)
      raw[i] = kind == stored ? -std::fabs(drawn(3)) : drawn(5), bias[i] = drawn(3);
    const double a = is_everyday ? random.uniform(-3, 3) : drawn(200);
    const kda::OracleRows biases =
        has_bias ? kda::OracleRows{bias.data(), zeros.data()} : kda::OracleRows{nullptr, nullptr};
    const kda::KernelTables tables = kda::kernel_tables();
    for (int isa = 0; isa < tables.count; ++isa) {
      const kda::KernelTable* const table = tables.table[isa];
      std::vector<double> hi = raw, lo(count), fast = raw, unused(count);
      const kda::OracleGateBlock exact{count, {hi.data(), lo.data()}, biases, a, kind == bounded_gate,
                                       bound, kind != stored};
      if (kind != stored) table->oracle.gate(exact);
      table->oracle.exponential(exact.g, count);
      kda::OracleGateBlock at_once = exact;
      at_once.g = {fast.data(), unused.data()};
      table->oracle.decay(at_once);
      INFO(table->instruction_set << " kind " << kind << " a " << a);
      for (std::size_t i = 0; i < count; ++i) {
        INFO("raw " << raw[i] << " bias " << bias[i] << " fast " << fast[i] << " off by " << fast[i] - hi[i]);
        REQUIRE(is(fast[i], hi[i]));
        ordinary += fast[i] > 0 && fast[i] < 1;
      }
    }
  }
  CHECK(ordinary > 5000);
}

}  // namespace gate_functions_tests
