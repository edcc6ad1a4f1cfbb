// How large the numbers become on the way to (I + L)^-1 (docs/kda.md, "Inverse formulations"): the powers of
// L that doubling multiplies by, the partial sums that Horner's scheme passes through, and the inverse
// itself. All in fp64, from the L of the actual keys, gates and beta.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "explain/place.hpp"

namespace kda_check::explain {

inline constexpr std::array<std::size_t, 4> block_sides = {8, 16, 32, 64};

/// Worst over all diagonal blocks of one side.
struct BlockGrowth {
  Peak power;                ///< largest |entry| of L, L^2, L^4 ... up to the power side / 2
  std::size_t exponent = 1;  ///< of that power
  double doubling = 0;       ///< largest |entry| of those powers and of doubling's partial products
  double horner = 0;         ///< largest |entry| of the partial sums I - L + L^2 - ...
  double paterson = 0;       ///< of those that end behind L^3, L^7 ... and of the powers up to L^4
  /// Largest of (the largest of those powers and products) / (the largest entry of the inverse), one chunk at
  /// a time: what doubling multiplies the unit roundoff by; and the same of Paterson and Stockmeyer.
  double doubling_amplification = 1, paterson_amplification = 1;
};

struct InverseGrowth {
  double largest_L = 0;        ///< |entry|
  double largest_inverse = 1;  ///< |entry| of the inverse of whole chunks
  double norm = 1;             ///< largest sum of |entries| of a row
  /// Largest entry of |A| |L| |A| over that of A = (I + L)^-1: what forms that solve row by row multiply the
  /// unit roundoff by, at most and to first order (N. Higham, Accuracy and Stability of Numerical Algorithms,
  /// 2nd ed., section 8.1).
  double substitution_amplification = 0;
  std::array<BlockGrowth, block_sides.size()> blocks;  ///< by block_sides

  void merge(const InverseGrowth& later);
};

/// L of one chunk, strictly lower: beta_i sum_k read_ik k_jk exp(G_i - G_j). k, read (k, or erase * k) and
/// the decays of the tokens, exp(g), are [rows][key_dim].
struct ChunkKeys {
  std::size_t rows, key_dim;
  const double *k, *read, *decay, *beta;
};
std::vector<double> strict_lower(const ChunkKeys& chunk);

/// Adds one chunk; L is [rows][rows].
void scan_inverse(const std::vector<double>& L, std::size_t rows, const Place& at, InverseGrowth& growth);

}  // namespace kda_check::explain
