// Powers, partial sums and inverses against binomials and against plain matrices.
#include "explain/growth/inverse_growth.hpp"

#include <cmath>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace inverse_growth_tests {

using namespace kda_check;
using namespace kda_check::explain;

namespace {

using Matrix = std::vector<double>;

double binomial(int n, int k) {
  double value = 1;
  for (int i = 1; i <= k; ++i) value = value * (n - k + i) / i;
  return value;
}

Matrix ones_below(std::size_t n) {
  Matrix L(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < i; ++j) L[i * n + j] = 1;
  return L;
}

InverseGrowth growth_of(const Matrix& L, std::size_t n) {
  InverseGrowth growth;
  scan_inverse(L, n, {}, growth);
  return growth;
}

Matrix times(const Matrix& a, const Matrix& b, std::size_t n) {
  Matrix c(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t m = 0; m < n; ++m) c[i * n + j] += a[i * n + m] * b[m * n + j];
  return c;
}

double largest(const Matrix& m) {
  double value = 0;
  for (const double entry : m) value = std::max(value, std::fabs(entry));
  return value;
}

/// The diagonal block of `side` rows from `from` on.
Matrix block_of(const Matrix& m, std::size_t n, std::size_t from, std::size_t side) {
  Matrix block(side * side);
  for (std::size_t i = 0; i < side; ++i)
    for (std::size_t j = 0; j < side; ++j) block[i * side + j] = m[(from + i) * n + from + j];
  return block;
}

}  // namespace

TEST_CASE("identical keys make the powers of L grow as binomials do", "[forecast]") {
  // (L^p)_ij = C(i - j - 1, p - 1), largest in the corner.
  const InverseGrowth growth = growth_of(ones_below(64), 64);
  CHECK(growth.blocks[1].power.value == 3432);
  CHECK(growth.blocks[1].exponent == 8);
  CHECK(growth.blocks[2].power.value == binomial(30, 15));
  CHECK(growth.blocks[2].exponent == 16);
  CHECK(growth.blocks[3].power.value == Approx(4.65e17).epsilon(1e-3));
  CHECK(growth.blocks[3].exponent == 32);
  CHECK(growth.largest_inverse == 1);  // 1 on the diagonal, -1 below it
  CHECK(growth.norm == 2);
}

TEST_CASE("identical keys make Horner's partial sums grow, not its answer", "[forecast]") {
  // The sums of the first m terms are -+C(i - j - 2, m - 1): largest in the corner, halfway.
  const InverseGrowth growth = growth_of(ones_below(64), 64);
  CHECK(growth.blocks[2].horner == binomial(29, 14));
  CHECK(growth.blocks[3].horner == Approx(binomial(61, 30)).epsilon(1e-12));
}

TEST_CASE("powers of blocks are those of plain matrices", "[forecast]") {
  constexpr std::size_t n = 53;
  test::Random random(5);
  Matrix L(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < i; ++j) L[i * n + j] = random.uniform(-1, 1.5);
  const InverseGrowth growth = growth_of(L, n);
  for (std::size_t s = 0; s < block_sides.size(); ++s) {
    double expected = 0;
    for (std::size_t from = 0; from < n; from += block_sides[s]) {
      const std::size_t side = std::min(block_sides[s], n - from);
      Matrix power = block_of(L, n, from, side);
      for (std::size_t p = 1; p < block_sides[s]; p *= 2) {
        expected = std::max(expected, largest(power));
        power = times(power, power, side);
      }
    }
    CHECK(growth.blocks[s].power.value == Approx(expected).epsilon(1e-12));
  }
}

TEST_CASE("L is the sum over pairs, with gates of any strength", "[forecast]") {
  constexpr std::size_t n = 37, K = 5;
  for (const double strength : {0.01, 2.0, 80.0}) {
    test::Random random(3);
    std::vector<double> k(n * K), G(n * K), decay(n * K), beta(n);
    for (std::size_t i = 0; i < n; ++i) {
      beta[i] = random.uniform();
      for (std::size_t c = 0; c < K; ++c) {
        const double g = -strength * random.uniform();
        k[i * K + c] = random.normal();
        decay[i * K + c] = std::exp(g);
        G[i * K + c] = (i > 0 ? G[(i - 1) * K + c] : 0) + g;
      }
    }
    const Matrix L = strict_lower({n, K, k.data(), k.data(), decay.data(), beta.data()});
    double worst = 0;
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) {
        double expected = 0;
        for (std::size_t c = 0; c < K && j < i; ++c)
          expected += beta[i] * k[i * K + c] * k[j * K + c] * std::exp(G[i * K + c] - G[j * K + c]);
        worst = std::max(worst, std::fabs(L[i * n + j] - expected));
      }
    CHECK(worst < 1e-13);
  }
}

}  // namespace inverse_growth_tests
