#include "report/profile.hpp"

#include <bit>
#include <cmath>

#include "support/catch.hpp"

namespace profile_tests {

using namespace kda_check;
using report::profile_of;

TEST_CASE("a histogram by powers of two counts every distance once", "[report]") {
  judge::Measures measures;
  std::vector<std::uint64_t> expected;
  for (const std::uint64_t distance :
       {0ull, 0ull, 1ull, 2ull, 3ull, 4ull, 31ull, 32ull, 63ull, 64ull, 1023ull, 1024ull, (1ull << 40) + 5}) {
    measures.distances.add(distance);
    const auto bin = static_cast<std::size_t>(std::bit_width(distance));
    expected.resize(std::max(expected.size(), bin + 1));
    ++expected[bin];
  }
  CHECK(profile_of(measures, {}).distances == expected);
  CHECK(profile_of(measures, {}).growth.empty());
  CHECK(profile_of(judge::Measures{}, {}).distances.empty());
}

TEST_CASE("a profile has the errors of windows and heads, over all batch rows", "[report]") {
  // 130 tokens make windows of 3 and a last one of 1; head 1 errs by 1 % at token 129 alone.
  judge::TokenSeries series{2, 130, 2, std::vector<judge::TokenErrors>(2 * 130 * 2)};
  for (judge::TokenErrors& cell : series.cells) cell.expected2 = numeric::ProductSum::square(2);
  series.cells[(1 * 130 + 129) * 2 + 1].difference2 = numeric::ProductSum::square(2e-2);
  const report::ErrorProfile profile = profile_of({}, series);
  CHECK(profile.heat.tokens_together == 3);
  REQUIRE(profile.growth.size() == 44);
  REQUIRE(profile.heat.groups_of_heads() == 2);
  CHECK(profile.growth[42] == 0);
  CHECK(std::fabs(profile.growth[43] - std::sqrt(4e-4 / 16)) < 1e-15);  // two rows, two heads
  CHECK(std::fabs(profile.heat.error[44 + 43] - std::sqrt(4e-4 / 8)) < 1e-15);
  CHECK(profile.heat.error[43] == 0);
  series.cells[0].difference2 = numeric::ProductSum::square(HUGE_VAL);
  CHECK(std::isinf(profile_of({}, series).growth[0]));
}

}  // namespace profile_tests
