#include "numeric/product_sum.hpp"

#include <cstring>
#include <vector>

#include "support/big.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace product_sum_tests {

using namespace kda_check;
using numeric::ProductSum;
using test::Big;

namespace {

ProductSum sum_of_squares(const std::vector<double>& values) {
  ProductSum sum;
  for (const double x : values) sum.add_square(x);
  return sum;
}

Big exact_root(const std::vector<double>& values) {
  Big sum(0.0);
  for (const double x : values) sum = sum + Big(x) * Big(x);
  return sqrt(sum);
}

}  // namespace

TEST_CASE("sums of products that are in range have the bits of a plain sum", "[sums]") {
  test::Random random(31);
  ProductSum sum, squares;
  double plain = 0, plain_squares = 0;
  for (int i = 0; i < 10'000; ++i) {
    const double a = random.normal() * std::ldexp(1.0, static_cast<int>(random.below(600)) - 400),
                 b = random.below(10) == 0 ? 0.0 : random.normal();
    sum.add(a, b), squares.add_square(b);
    plain += a * b, plain_squares += b * b;
  }
  REQUIRE(sum.plain() != nullptr);
  CHECK(std::memcmp(sum.plain(), &plain, sizeof plain) == 0);
  CHECK(std::memcmp(squares.plain(), &plain_squares, sizeof plain) == 0);
  CHECK(quotient(sum, squares) == plain / plain_squares);
  CHECK(root_of_quotient(squares, ProductSum::square(3)) == std::sqrt(plain_squares / 9));
}

TEST_CASE("roots of sums of squares are right from the smallest number to the largest", "[sums]") {
  test::Random random(32);
  for (const auto& [least, most] : {std::pair{-1074, -600},
                                    {-1074, 1023},
                                    {-560, -440},
                                    {-520, 0},
                                    {400, 520},
                                    {460, 1015},
                                    {-1074, -1060},
                                    {0, 1015}})
    for (int repeat = 0; repeat < 50; ++repeat) {
      std::vector<double> values;
      for (int i = 0; i < 40; ++i)
        values.push_back(
            std::ldexp(random.uniform(-1, 1),
                       least + static_cast<int>(random.below(static_cast<std::size_t>(most - least)))));
      INFO("2^" << least << " to 2^" << most);
      const Big exact = exact_root(values);
      // Rounded once more where the root is below the normal numbers.
      const auto root = Approx(exact.to_double()).epsilon(1e-14).margin(0x1p-1074);
      CHECK(sum_of_squares(values).root() == root);
      // In any cut.
      ProductSum first = sum_of_squares({values.begin(), values.begin() + 7});
      first.add(sum_of_squares({values.begin() + 7, values.end()}));
      CHECK(first.root() == root);
      for (const double unit : {0x1p-700, 1.0, 0x1p700}) {
        const double expected = (exact / Big(unit)).to_double();
        if (expected > 0x1p-1000 && expected < 0x1p1000)
          CHECK(root_of_quotient(first, ProductSum::square(unit)) == Approx(expected).epsilon(1e-14));
      }
    }
}

TEST_CASE("quotients of scaled sums, signs, infinities and NaN", "[sums]") {
  ProductSum product, square;
  for (const double e : {3e-200, -5e-200, 1e-200}) {
    product.add(-0.25 * e, e);
    square.add_square(e);
  }
  CHECK(quotient(product, square) == Approx(-0.25).epsilon(1e-15));
  ProductSum large;
  large.add_square(1e200), large.add_square(-1e200);
  CHECK(large.root() == Approx(1.4142135623730951e200));
  CHECK(root_of_quotient(square, large) == 0);  // below the smallest number
  CHECK(quotient(large, large) == 1);
  large.scale(1e-200);
  CHECK(large.root() == Approx(1.4142135623730951));
  large.scale(0);
  CHECK(large.is_zero());
  ProductSum sum;
  sum.add(0, 5), sum.add(1e-300, 0);
  CHECK(sum.is_zero());
  sum.add_square(HUGE_VAL);
  CHECK(sum.root() == HUGE_VAL);
  sum.add(HUGE_VAL, 0);
  CHECK(std::isnan(sum.root()));
}

TEST_CASE("an error is relative to a size: no error is 0 of anything, any is infinite of nothing", "[sums]") {
  const ProductSum none, three = ProductSum::square(3), tiny = ProductSum::square(3e-200);
  CHECK(relative_size(three, ProductSum::square(4)) == 0.75);
  CHECK(relative_size(tiny, ProductSum::square(4e-200)) == Approx(0.75).epsilon(1e-15));
  CHECK(relative_size(none, three) == 0);
  CHECK(relative_size(none, none) == 0);
  CHECK(relative_size(tiny, none) == HUGE_VAL);
}

}  // namespace product_sum_tests
