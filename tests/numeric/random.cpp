#include "numeric/random.hpp"

#include <cmath>
#include <cstdint>
#include <set>

#include "support/catch.hpp"

namespace random_tests {

using kda_check::numeric::Random;

TEST_CASE("a random number is a function of seed, stream and counter", "[random]") {
  CHECK(Random(1, 2).bits(3) == Random(1, 2).bits(3));
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 10; ++seed)
    for (std::uint64_t stream = 0; stream < 10; ++stream)
      for (std::uint64_t counter = 0; counter < 10; ++counter)
        seen.insert(Random(seed, stream).bits(counter));
  CHECK(seen.size() == 1000);
}

TEST_CASE("the random bits are those of every other machine", "[random]") {
  // Worked out from the definition with whole numbers in Python.
  STATIC_REQUIRE(Random(0, 0).bits(0) == 0x33fe8bd4f9c57863u);
  STATIC_REQUIRE(Random(1, 2).bits(3) == 0x57b834b23cdc9d17u);
  STATIC_REQUIRE(Random(1, 2).uniform(3) == 0x1.5ee0d2c8f3726p-2);
}

TEST_CASE("uniforms and normals have their mean, variance and tails, and streams do not correlate",
          "[random]") {
  constexpr int count = 1 << 18;
  const Random random(5, 0), other(5, 1), neighbour(6, 0);
  double mean = 0, square = 0, fourth = 0, uniform = 0, across = 0, seeds = 0, lag = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double x = random.normal(i);
    mean += x, square += x * x, fourth += x * x * x * x, uniform += random.uniform(i);
    across += x * other.normal(i), seeds += x * neighbour.normal(i), lag += x * random.normal(i + 1);
  }
  const double deviation = 1 / std::sqrt(count);
  CHECK(std::fabs(mean / count) < 5 * deviation);
  CHECK(square / count == Approx(1).margin(5 * std::sqrt(2) * deviation));
  CHECK(fourth / count == Approx(3).margin(5 * std::sqrt(96) * deviation));
  CHECK(uniform / count == Approx(0.5).margin(5 * deviation / std::sqrt(12)));
  for (const double product : {across, seeds, lag}) CHECK(std::fabs(product / count) < 5 * deviation);
}

}  // namespace random_tests
