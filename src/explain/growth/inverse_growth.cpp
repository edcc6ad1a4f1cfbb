#include "explain/growth/inverse_growth.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numeric/elementary.hpp"

namespace kda_check::explain {

namespace {

using Matrix = std::vector<double>;

/// The larger one; NaN counts as infinite.
double worse(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::infinity();
  return a > b ? a : b;
}

double largest_entry(const Matrix& m, std::size_t n, std::size_t from, std::size_t to) {
  double largest = 0;
  for (std::size_t i = from; i < to; ++i)
    for (std::size_t j = from; j <= i; ++j) largest = worse(largest, std::fabs(m[i * n + j]));
  return largest;
}

/// start + sign a b for lower triangular a and b, one diagonal block of `side` rows at a time.
Matrix product(const Matrix& a, const Matrix& b, std::size_t n, std::size_t side, double sign,
               const Matrix* start = nullptr) {
  Matrix c = start != nullptr ? *start : Matrix(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t first = i / side * side;
    for (std::size_t m = first; m <= i; ++m) {
      const double factor = sign * a[i * n + m];
      for (std::size_t j = first; j <= m; ++j) c[i * n + j] += factor * b[m * n + j];
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

Matrix absolute(Matrix m, double sign = 1) {
  for (double& entry : m) entry = sign * std::fabs(entry);
  return m;
}

Matrix identity_minus(const Matrix& L, std::size_t n) {
  Matrix x(n * n);
  for (std::size_t e = 0; e < n * n; ++e) x[e] = -L[e];
  for (std::size_t i = 0; i < n; ++i) x[i * n + i] = 1;
  return x;
}

struct Largest {
  double power = 0, doubling = 0;
  std::size_t which = 1;
};

/// What `m` adds to every diagonal block of the sides that doubling reaches with it.
template <class Note>
void for_blocks(std::size_t n, std::size_t least_side, Note note) {
  for (std::size_t s = 0; s < block_sides.size(); ++s)
    if (block_sides[s] >= least_side)
      for (std::size_t from = 0; from < n; from += block_sides[s])
        note(s, from, std::min(from + block_sides[s], n));
}

/// Powers of the diagonal blocks of 64 rows hold those of 32 and 16 rows: L is triangular.
void scan_doubling(const Matrix& L, const Matrix& A, std::size_t n, const Place& at, InverseGrowth& growth) {
  std::array<std::vector<Largest>, 3> seen;
  for_blocks(n, 0, [&](std::size_t s, std::size_t, std::size_t) { seen[s].push_back({}); });
  const auto note_power = [&](const Matrix& m, std::size_t power) {
    for_blocks(n, 2 * power, [&](std::size_t s, std::size_t from, std::size_t to) {
      Largest& block = seen[s][from / block_sides[s]];
      const double size = largest_entry(m, n, from, to);
      if (worse(size, block.power) > block.power) block.power = worse(size, block.power), block.which = power;
    });
  };
  Matrix x = identity_minus(L, n), power = L;
  note_power(power, 1);
  for (std::size_t p = 2; p <= 32 && p < n; p *= 2) {
    power = product(power, power, n, 64, 1);
    x = product(x, power, n, 64, 1, &x);
    note_power(power, p);
    for_blocks(n, 2 * p, [&](std::size_t s, std::size_t from, std::size_t to) {
      Largest& block = seen[s][from / block_sides[s]];
      block.doubling = worse(block.doubling, largest_entry(x, n, from, to));
    });
  }
  for_blocks(n, 0, [&](std::size_t s, std::size_t from, std::size_t to) {
    const Largest& block = seen[s][from / block_sides[s]];
    BlockGrowth& worst = growth.blocks[s];
    const double doubling = worse(block.power, block.doubling), size = largest_entry(A, n, from, to);
    worst.doubling = worse(worst.doubling, doubling);
    worst.doubling_amplification = worse(worst.doubling_amplification, worse(doubling, size) / size);
    if (block.power > worst.largest_power) {
      worst.largest_power = block.power;
      worst.power = block.which;
      worst.power_place = at;
      worst.power_place.row = from;
    }
  });
}

/// Partial sums of Horner's scheme, evaluated only where their bound, the entries of (I - |L|)^-1, exceeds
/// what every format holds.
void scan_horner(const Matrix& L, std::size_t n, InverseGrowth& growth) {
  constexpr double fp16_largest = 65504;
  const Matrix bound = inverse(absolute(L, -1), n);
  for (std::size_t s = 0; s < block_sides.size(); ++s) {
    double largest = 0;
    for (std::size_t from = 0; from < n; from += block_sides[s])
      largest = worse(largest, largest_entry(bound, n, from, std::min(from + block_sides[s], n)));
    if (largest > fp16_largest) {
      const Matrix identity = identity_minus(Matrix(n * n, 0.0), n);
      Matrix x = identity_minus(L, n);
      largest = 0;
      for (std::size_t step = 2; step < std::min(block_sides[s], n); ++step) {
        x = product(L, x, n, block_sides[s], -1, &identity);
        for (std::size_t from = 0; from < n; from += block_sides[s])
          largest = worse(largest, largest_entry(x, n, from, std::min(from + block_sides[s], n)));
      }
    }
    growth.blocks[s].horner = worse(growth.blocks[s].horner, largest);
  }
}

}  // namespace

void InverseGrowth::merge(const InverseGrowth& later) {
  largest_L = worse(largest_L, later.largest_L);
  if (later.largest_inverse > largest_inverse)
    largest_inverse = later.largest_inverse, inverse_place = later.inverse_place;
  norm = worse(norm, later.norm);
  substitution_amplification = worse(substitution_amplification, later.substitution_amplification);
  for (std::size_t s = 0; s < blocks.size(); ++s) {
    BlockGrowth& mine = blocks[s];
    const BlockGrowth& other = later.blocks[s];
    if (other.largest_power > mine.largest_power)
      mine.largest_power = other.largest_power, mine.power = other.power,
      mine.power_place = other.power_place;
    mine.doubling = worse(mine.doubling, other.doubling);
    mine.horner = worse(mine.horner, other.horner);
    mine.doubling_amplification = worse(mine.doubling_amplification, other.doubling_amplification);
  }
}

std::vector<double> strict_lower(const ChunkKeys& chunk) {
  const std::size_t n = chunk.rows, K = chunk.key_dim, stride = chunk.stride;
  constexpr std::size_t side = 16;
  Matrix L(n * n, 0.0);
  std::vector<double> right(K * side), left(K);  // k_j exp(G_anchor - G_j), beta_i read_i exp(G_i - G_anchor)
  const auto decay = [&](std::size_t i, std::size_t j, std::size_t k) {
    return numeric::exp(chunk.G[i * stride + k] - chunk.G[j * stride + k]);
  };
  for (std::size_t first = 0; first < n; first += side) {
    const std::size_t last = std::min(first + side, n);
    std::fill(right.begin(), right.end(), 0.0);
    for (std::size_t i = first + 1; i < n; ++i) {
      // The anchor follows one row behind, up to the last column: no exponent is positive where gates decay.
      const std::size_t anchor = std::min(i, last) - 1;
      if (i <= last)
        for (std::size_t k = 0; k < K; ++k) {
          const double step = anchor > first ? decay(anchor, anchor - 1, k) : 0;
          for (std::size_t j = 0; j < side; ++j) right[k * side + j] *= step;
          right[k * side + anchor - first] = chunk.k[anchor * stride + k];
        }
      for (std::size_t k = 0; k < K; ++k)
        left[k] = chunk.beta[i] * chunk.read[i * stride + k] * decay(i, anchor, k);
      double sum[side] = {};
      for (std::size_t k = 0; k < K; ++k)
        for (std::size_t j = 0; j < side; ++j) sum[j] += left[k] * right[k * side + j];
      for (std::size_t j = first; j <= anchor; ++j) L[i * n + j] = sum[j - first];
    }
  }
  return L;
}

void scan_inverse(const std::vector<double>& L, std::size_t rows, const Place& at, InverseGrowth& growth) {
  const std::size_t n = rows;
  const Matrix A = inverse(L, n), size_of_A = absolute(A);
  growth.largest_L = worse(growth.largest_L, largest_entry(L, n, 0, n));
  double largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j <= i; ++j) {
      const double size = size_of_A[i * n + j];
      sum += size;
      largest = worse(largest, size);
      if (worse(size, 0) > growth.largest_inverse) {
        growth.largest_inverse = worse(size, 0);
        growth.inverse_place = at;
        growth.inverse_place.row = i;
      }
    }
    growth.norm = worse(growth.norm, sum);
  }
  const Matrix residual = product(product(size_of_A, absolute(L), n, n, 1), size_of_A, n, n, 1);
  growth.substitution_amplification =
      worse(growth.substitution_amplification, largest_entry(residual, n, 0, n) / largest);
  scan_doubling(L, A, n, at, growth);
  scan_horner(L, n, growth);
}

}  // namespace kda_check::explain
