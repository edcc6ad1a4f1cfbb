#include "explain/growth/inverse_growth.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kda_check::explain {

namespace {

using Matrix = std::vector<double>;

/// Of the diagonal blocks of `side` rows, the largest |entry| at least `below` columns left of the diagonal.
Peak largest_entry(const Matrix& m, std::size_t n, std::size_t side, std::size_t below, Place at) {
  Peak largest;
  for (std::size_t i = below; i < n; ++i) {
    at.row = i;
    for (std::size_t j = i / side * side; j + below <= i; ++j) largest.note(std::fabs(m[i * n + j]), at);
  }
  return largest;
}

double larger(double a, double b) {
  Peak both;
  both.note(a, {}), both.note(b, {});
  return both.value;
}

/// a b within the diagonal blocks of `side` rows, of lower triangular matrices. b is zero less than `below`
/// columns left of its diagonal.
Matrix product(const Matrix& a, const Matrix& b, std::size_t n, std::size_t side, std::size_t below = 0) {
  Matrix c(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t first = i / side * side;
    for (std::size_t m = first + below; m <= i; ++m) {
      const double factor = a[i * n + m];
      for (std::size_t j = first; j + below <= m; ++j) c[i * n + j] += factor * b[m * n + j];
    }
  }
  return c;
}

/// (I + L)^-1, row by row.
Matrix inverse(const Matrix& L, std::size_t n) {
  Matrix x(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    x[i * n + i] = 1;
    for (std::size_t m = 0; m < i; ++m)
      for (std::size_t j = 0; j <= m; ++j) x[i * n + j] -= L[i * n + m] * x[m * n + j];
  }
  return x;
}

Matrix absolute(Matrix m) {
  for (double& entry : m) entry = std::fabs(entry);
  return m;
}

/// L^p, and I - L + L^2 - ... up to it, for p from 1 on. The sums are those of Horner's scheme; behind L^p
/// with p = 1, 3, 7 ... they are the products of doubling, (I - L)(I + L^2)(I + L^4) ..., too.
void scan_powers(const Matrix& L, const Matrix& A, std::size_t n, const Place& at, InverseGrowth& growth) {
  const std::size_t most = block_sides.back();
  std::array<double, block_sides.size()> doubling{}, paterson{};
  Matrix power = L, sum(n * n, 0.0);
  for (std::size_t p = 1; p < std::min(n, most); ++p) {
    if (p > 1) power = product(L, power, n, most, p - 1);
    for (std::size_t e = 0; e < n * n; ++e) sum[e] += p % 2 == 0 ? power[e] : -power[e];
    for (std::size_t s = 0; s < block_sides.size(); ++s) {
      const std::size_t side = block_sides[s];
      if (p >= side) continue;
      BlockGrowth& block = growth.blocks[s];
      const double of_sum = largest_entry(sum, n, side, p, at).value;
      block.horner = larger(block.horner, of_sum);
      if (std::has_single_bit(p + 1)) doubling[s] = larger(doubling[s], of_sum);
      if (p % 4 == 3) paterson[s] = larger(paterson[s], of_sum);
      if (p <= 4) paterson[s] = larger(paterson[s], largest_entry(power, n, side, p, at).value);
      if (!std::has_single_bit(p)) continue;
      const Peak of_power = largest_entry(power, n, side, p, at);
      doubling[s] = larger(doubling[s], of_power.value);
      if (of_power.value > block.power.value) block.power = of_power, block.exponent = p;
    }
  }
  for (std::size_t s = 0; s < block_sides.size(); ++s) {
    BlockGrowth& block = growth.blocks[s];
    const double size = largest_entry(A, n, block_sides[s], 0, at).value;
    block.doubling = larger(block.doubling, doubling[s]);
    block.doubling_amplification = larger(block.doubling_amplification, doubling[s] / size);
    block.paterson = larger(block.paterson, paterson[s]);
    block.paterson_amplification = larger(block.paterson_amplification, paterson[s] / size);
  }
}

}  // namespace

void InverseGrowth::merge(const InverseGrowth& later) {
  largest_L = larger(largest_L, later.largest_L);
  largest_inverse = larger(largest_inverse, later.largest_inverse);
  norm = larger(norm, later.norm);
  substitution_amplification = larger(substitution_amplification, later.substitution_amplification);
  for (std::size_t s = 0; s < blocks.size(); ++s) {
    BlockGrowth& mine = blocks[s];
    const BlockGrowth& other = later.blocks[s];
    if (other.power.value > mine.power.value) mine.power = other.power, mine.exponent = other.exponent;
    mine.doubling = larger(mine.doubling, other.doubling);
    mine.horner = larger(mine.horner, other.horner);
    mine.doubling_amplification = larger(mine.doubling_amplification, other.doubling_amplification);
    mine.paterson = larger(mine.paterson, other.paterson);
    mine.paterson_amplification = larger(mine.paterson_amplification, other.paterson_amplification);
  }
}

std::vector<double> strict_lower(const ChunkKeys& chunk) {
  const std::size_t n = chunk.rows, K = chunk.key_dim;
  Matrix L(n * n, 0.0);
  std::vector<double> key(K);
  for (std::size_t j = 0; j < n; ++j) {
    std::copy_n(chunk.k + j * K, K, key.begin());
    for (std::size_t i = j + 1; i < n; ++i) {
      double sum = 0;
      for (std::size_t k = 0; k < K; ++k) {
        key[k] *= chunk.decay[i * K + k];
        sum += chunk.read[i * K + k] * key[k];
      }
      L[i * n + j] = chunk.beta[i] * sum;
    }
  }
  return L;
}

void scan_inverse(const std::vector<double>& L, std::size_t rows, const Place& at, InverseGrowth& growth) {
  const std::size_t n = rows;
  const Matrix A = inverse(L, n), size_of_A = absolute(A);
  const double largest = largest_entry(A, n, n, 0, at).value;
  growth.largest_L = larger(growth.largest_L, largest_entry(L, n, n, 0, at).value);
  growth.largest_inverse = larger(growth.largest_inverse, largest);
  for (std::size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j <= i; ++j) sum += size_of_A[i * n + j];
    growth.norm = larger(growth.norm, sum);
  }
  const Matrix error = product(product(size_of_A, absolute(L), n, n), size_of_A, n, n);
  growth.substitution_amplification =
      larger(growth.substitution_amplification, largest_entry(error, n, n, 0, at).value / largest);
  scan_powers(L, A, n, at, growth);
}

}  // namespace kda_check::explain
