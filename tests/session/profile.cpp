#include "session/profile.hpp"

#include <bit>
#include <cmath>

#include "session/run.hpp"
#include "support/catch.hpp"
#include "support/problems.hpp"

using namespace kda_check;

TEST_CASE("a histogram by powers of two counts every distance once", "[session]") {
  compare::Measures measures;
  std::vector<std::uint64_t> expected;
  for (const std::uint64_t distance :
       {0ull, 0ull, 1ull, 2ull, 3ull, 4ull, 31ull, 32ull, 63ull, 64ull, 1023ull, 1024ull, (1ull << 40) + 5}) {
    measures.distances.add(distance);
    const auto bin = static_cast<std::size_t>(std::bit_width(distance));
    expected.resize(std::max(expected.size(), bin + 1));
    ++expected[bin];
  }
  CHECK(session::profile_of(measures, {}).distances == expected);
  CHECK(session::profile_of(measures, {}).growth.empty());
  CHECK(session::profile_of(compare::Measures{}, {}).distances.empty());
}

TEST_CASE("a profile has the errors of windows and heads, over all batch rows", "[session]") {
  // 130 tokens make windows of 3 and a last one of 1; head 1 errs by 1 % at token 129 alone.
  compare::TokenSeries series{2, 130, 2, std::vector<compare::TokenErrors>(2 * 130 * 2)};
  for (compare::TokenErrors& cell : series.cells) cell.expected2 = 4;
  series.cells[(1 * 130 + 129) * 2 + 1].difference2 = 4e-4;
  report::ErrorProfile profile = session::profile_of({}, series);
  CHECK(profile.window == 3);
  REQUIRE(profile.windows() == 44);
  REQUIRE(profile.head_groups() == 2);
  CHECK(profile.growth[42] == 0);
  CHECK(std::fabs(profile.growth[43] - std::sqrt(4e-4 / 16)) < 1e-15);  // two rows, two heads
  CHECK(std::fabs(profile.heat[44 + 43] - std::sqrt(4e-4 / 8)) < 1e-15);
  CHECK(profile.heat[43] == 0);
  series.cells[0].difference2 = HUGE_VAL;
  CHECK(std::isinf(session::profile_of({}, series).growth[0]));
}

TEST_CASE("a run keeps profiles only when asked, and changes nothing else by it", "[session]") {
  session::RunRequest request;
  request.fixtures = {test::case_fixtures() + "/fla_fp32_small.h5"};
  request.variants = {"recurrent"};
  const report::Result plain = session::run(request, {});
  request.judging.profile = true;
  const report::Result drawn = session::run(request, {});
  REQUIRE(plain.cases.size() == drawn.cases.size());
  for (std::size_t i = 0; i < plain.cases.size(); ++i)
    for (std::size_t j = 0; j < plain.cases[i].tensors.size(); ++j) {
      const report::TensorResult &a = plain.cases[i].tensors[j], &b = drawn.cases[i].tensors[j];
      CHECK(!a.profile);
      REQUIRE(b.profile);
      CHECK(a.metrics == b.metrics);
      std::uint64_t total = 0;
      for (const std::uint64_t count : b.profile->distances) total += count;
      CHECK(total == tensor::element_count(b.shape));
      CHECK(b.profile->growth.empty() == (b.name != "o"));
    }
}
