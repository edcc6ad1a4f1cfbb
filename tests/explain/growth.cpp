#include "explain/growth/growth.hpp"

#include <cmath>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace growth_tests {

using namespace kda_check;
using namespace kda_check::explain;

namespace {

judge::TokenSeries series_of(std::size_t rows, std::size_t tokens, std::size_t heads) {
  judge::TokenSeries series{rows, tokens, heads, std::vector<judge::TokenErrors>(rows * tokens * heads)};
  for (judge::TokenErrors& errors : series.cells) errors.expected2.add_square(1);
  return series;
}

judge::TokenErrors& cell(judge::TokenSeries& series, std::size_t row, std::size_t token, std::size_t head) {
  return series.cells[(row * series.tokens + token) * series.heads + head];
}

/// One token's; `difference` and `expected` are the roots of its sums of squares.
judge::TokenErrors errors_of(double difference, double expected, double max_abs, double scaled_ulp,
                             std::uint32_t abs_lane, std::uint32_t ulp_lane) {
  return {numeric::ProductSum::square(difference),
          numeric::ProductSum::square(expected),
          max_abs,
          scaled_ulp,
          abs_lane,
          ulp_lane};
}

std::vector<kda::Sequence> one_sequence(std::size_t tokens) { return {{0, 0, 0, tokens}}; }

}  // namespace

TEST_CASE("a power law is fitted with its slope", "[explain][growth]") {
  for (const double slope : {-1.5, 0.0, 0.5, 1.0, 2.0}) {
    std::vector<double> t, error;
    for (int i = 1; i <= 40; ++i) t.push_back(i), error.push_back(3e-7 * std::pow(i, slope));
    const Fit fit = fit_power_law(t, error);
    CHECK(fit.points == 40);
    CHECK(fit.slope == Approx(slope).margin(1e-9));
    CHECK(fit.standard_error < 1e-6);
    if (slope != 0) CHECK(fit.r2 == Approx(1));
    CHECK(trend_of(fit) == (slope == 0 ? Trend::steady : slope > 0 ? Trend::grows : Trend::falls));
  }
}

TEST_CASE("noise is not sold as growth", "[explain][growth]") {
  // Errors without a trend that scatter over four decades: whatever slope comes out, no trend may be claimed.
  int claimed = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    test::Random random(seed);
    std::vector<double> t, error;
    for (int i = 1; i <= 16; ++i) t.push_back(i), error.push_back(std::pow(10, random.uniform(-8, -4)));
    const Trend trend = trend_of(fit_power_law(t, error));
    claimed += trend == Trend::grows || trend == Trend::falls;
  }
  CHECK(claimed <= 4);
}

TEST_CASE("growth under noise is still found", "[explain][growth]") {
  test::Random random(5);
  std::vector<double> t, error;
  for (int i = 1; i <= 64; ++i) t.push_back(i), error.push_back(i * std::exp(0.5 * random.normal()));
  const Fit fit = fit_power_law(t, error);
  CHECK(std::fabs(fit.slope - 1) < 3 * fit.standard_error);
  CHECK(trend_of(fit) == Trend::grows);
}

TEST_CASE("windows without an error, with an infinite one, or too few of them are not fitted",
          "[explain][growth]") {
  const std::vector<double> t{1, 2, 3, 4, 5}, error{0, 2, HUGE_VAL, 4, 5};
  const Fit fit = fit_power_law(t, error);
  CHECK(fit.points == 3);
  CHECK(fit.slope == Approx(1));
  CHECK(trend_of(fit) == Trend::unclear);
  CHECK(fit_power_law(t, std::vector<double>(5, 0.0)).points == 0);
}

TEST_CASE("windows pool the tokens of all heads, and the head that is off is named", "[explain][growth]") {
  judge::TokenSeries series = series_of(1, 100, 3);
  for (std::size_t t = 0; t < 100; ++t) {
    for (std::size_t head = 0; head < 3; ++head) cell(series, 0, t, head).difference2.add_square(1e-7);
    const double error = 1e-6 * static_cast<double>(t + 1);
    cell(series, 0, t, 2).difference2.add_square(error);
    cell(series, 0, t, 2).max_abs = error;
  }
  const Growth growth = growth_of(series, one_sequence(100), 16);
  REQUIRE(growth.windows.size() == 7);
  CHECK(growth.windows[6].first == 96);
  CHECK(growth.windows[6].last == 99);
  double sum = 0;
  for (std::size_t t = 16; t < 32; ++t) sum += 2e-14 + std::pow(1e-6 * static_cast<double>(t + 1), 2);
  CHECK(growth.windows[1].rms_ratio == Approx(std::sqrt(sum / 48)));
  CHECK(growth.windows[1].max_abs == Approx(32e-6));
  CHECK(growth.worst_head == 2);
  CHECK(growth.heads[2].fit.slope == Approx(1).margin(0.05));
  CHECK(growth.trend == Trend::grows);
  CHECK(trend_of(growth.heads[0].fit) == Trend::steady);
}

TEST_CASE("sequences of a packed batch are laid over each other by position", "[explain][growth]") {
  judge::TokenSeries series = series_of(1, 30, 1);
  const std::vector<kda::Sequence> sequences{{0, 0, 0, 12}, {1, 0, 12, 12}, {2, 0, 12, 30}};
  cell(series, 0, 12 + 5, 0) = errors_of(2, 1, 2, 7, 3, 1);
  const Growth growth = growth_of(series, sequences, 4);
  REQUIRE(growth.windows.size() == 5);  // of the longest, 18 tokens
  CHECK(growth.windows[0].rms_ratio == 0);
  CHECK(growth.windows[1].rms_ratio == Approx(std::sqrt(4.0 / 8)));  // positions 4..7 of two sequences
  const auto crossing = first_crossing(series, sequences, 4, GrowthMetric::max_abs, 1.5);
  REQUIRE(crossing);
  CHECK(crossing->position == 5);
  CHECK(crossing->token == 17);
  CHECK(crossing->lane == 3);
}

TEST_CASE("counted from the end, positions start at the last token of every sequence", "[explain][growth]") {
  judge::TokenSeries series = series_of(1, 30, 1);
  const std::vector<kda::Sequence> sequences{{0, 0, 0, 12}, {1, 0, 12, 12}, {2, 0, 12, 30}};
  cell(series, 0, 12 + 5, 0) = errors_of(2, 1, 2, 7, 3, 1);  // position 12 of 18
  cell(series, 0, 9, 0) = errors_of(1, 1, 1.8, 7, 2, 1);     // position 2 of 12
  const Growth growth = growth_of(series, sequences, 4, Origin::end);
  REQUIRE(growth.windows.size() == 5);
  CHECK(growth.windows[0].rms_ratio == Approx(std::sqrt(1.0 / 8)));
  CHECK(growth.windows[3].rms_ratio == Approx(std::sqrt(4.0 / 4)));  // of one sequence only
  CHECK(growth.windows[4].last == 17);
  const auto token = first_crossing(series, sequences, 4, GrowthMetric::max_abs, 1.5, Origin::end);
  REQUIRE(token);
  CHECK(token->position == 2);
  CHECK(token->token == 9);
  CHECK(token->lane == 2);
  const auto window = first_crossing(series, sequences, 4, GrowthMetric::rms_ratio, 0.5, Origin::end);
  REQUIRE(window);
  CHECK(window->position == 12);
  CHECK(window->token == 17);
}

TEST_CASE("growth is the same however small the tensor", "[growth]") {
  const auto rms_of = [](double unit) {
    judge::TokenSeries series{1, 4, 1, std::vector<judge::TokenErrors>(4)};
    for (std::size_t t = 0; t < 4; ++t)
      series.cells[t].take(1e-6 * unit * static_cast<double>(t + 1), unit, 0, 0);
    return explain::growth_of(series, {{0, 0, 0, 4}}, 2, explain::Origin::start).windows[1].rms_ratio;
  };
  CHECK(rms_of(1) == Approx(3.5355e-6).epsilon(1e-4));
  for (const double unit : {1e-180, 1e-300, 1e160}) CHECK(rms_of(unit) == Approx(rms_of(1)).epsilon(1e-12));
}

TEST_CASE("a bias is what all windows have too much, noise has none", "[growth]") {
  judge::TokenSeries series{1, 8, 1, std::vector<judge::TokenErrors>(8)};
  for (std::size_t t = 0; t < 8; ++t)
    for (const double expected : {2.0, -1.0}) {
      const double noise = t < 4 ? 0.5 : 0, scale = t < 4 ? 0 : -0.125;
      series.cells[t].take(expected * scale + (t % 2 == 0 ? noise : -noise), expected, 0, 0);
    }
  const Growth growth = growth_of(series, {{0, 0, 0, 8}}, 4);
  CHECK(growth.windows[0].bias == 0);
  CHECK(growth.windows[0].rms_ratio > 0.1);
  CHECK(growth.windows[1].bias == -0.125);
  CHECK(growth.bias == -0.0625);
}

TEST_CASE("the first token over a limit is found, not the worst", "[explain][growth]") {
  judge::TokenSeries series = series_of(2, 50, 4);
  cell(series, 1, 20, 3) = errors_of(3, 1, 3, 30, 0, 6);
  cell(series, 0, 20, 1) = errors_of(2, 1, 2, 20, 0, 5);
  cell(series, 0, 40, 0) = errors_of(100, 1, 100, 1000, 0, 0);
  const std::vector<kda::Sequence> sequences{{0, 0, 0, 50}, {1, 1, 0, 50}};
  const auto crossing = first_crossing(series, sequences, 10, GrowthMetric::scaled_ulp, 10);
  REQUIRE(crossing);
  CHECK(crossing->position == 20);
  CHECK(crossing->row == 1);  // the worst of those at this position
  CHECK(crossing->head == 3);
  CHECK(crossing->lane == 6);
  CHECK(crossing->value == 30);
  CHECK(!first_crossing(series, sequences, 10, GrowthMetric::scaled_ulp, 1000));
  const auto window = first_crossing(series, sequences, 10, GrowthMetric::rms_ratio, 0.3);
  REQUIRE(window);
  CHECK(window->position == 20);
  CHECK(window->head == 3);
  CHECK(!window->lane);
  CHECK(window->value == Approx(std::sqrt(13.0 / 80)));
}

}  // namespace growth_tests
