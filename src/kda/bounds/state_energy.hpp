// The recurrence of the energy of a state, or of its gradient, whose terms have random signs
// (kda/bounds/term_energies.hpp).
#pragma once

#include <cstddef>
#include <vector>

namespace kda_check::kda {

/// Of one sum: squares of what its terms would add up to with random signs, and of what rounding them leaves.
struct Energy {
  double terms = 0, rounding = 0;

  void add(const Energy& other) { terms += other.terms, rounding += other.rounding; }
  Energy times(double factor) const { return {terms * factor, rounding * factor}; }
};

/// Of a product of two factors that err independently.
inline Energy product(const Energy& a, const Energy& b) {
  return {a.terms * b.terms, a.rounding * b.terms + a.terms * b.rounding};
}

/// The squares of the elements of a state, or of its gradient, in one row each.
struct StateEnergy {
  explicit StateEnergy(std::size_t K) : rows(K) {}

  void fade(const float* decay) {
    for (std::size_t k = 0; k < rows.size(); ++k)
      rows[k] = rows[k].times(static_cast<double>(decay[k]) * static_cast<double>(decay[k]));
  }
  /// sum_k k^2 of it.
  Energy along(const double* key) const {
    Energy sum;
    for (std::size_t k = 0; k < rows.size(); ++k) sum.add(rows[k].times(key[k] * key[k]));
    return sum;
  }
  /// (1 - beta k k^T) of it, and beta k of something else.
  void contract(const double* key, double beta, const Energy& prediction, double written) {
    for (std::size_t k = 0; k < rows.size(); ++k) {
      const double k2 = key[k] * key[k];
      contract_row(rows[k], 1 - beta * k2, beta * beta * k2, k2, prediction, written);
    }
  }
  /// The same where it is read along other rows than written: 1 - along read^T of it.
  void contract(const double* along, const double* read, const Energy& prediction, double written) {
    for (std::size_t k = 0; k < rows.size(); ++k)
      contract_row(rows[k], 1 - along[k] * read[k], along[k] * along[k], read[k] * read[k], prediction,
                   written);
  }

  std::vector<Energy> rows;

 private:
  static void contract_row(Energy& row, double kept, double write, double read2, const Energy& prediction,
                           double written) {
    const Energy before = row;
    row = before.times(kept * kept);
    row.terms += write * (written + prediction.terms - read2 * before.terms);
    row.rounding += write * (prediction.rounding - read2 * before.rounding + 2 * prediction.terms);
  }
};

/// Shares of columns in the energy of v, or of do.
struct Columns {
  std::vector<double> shares;

  void normalise() {
    double sum = 0;
    for (const double share : shares) sum += share;
    for (double& share : shares) share = sum > 0 ? share / sum : 1 / static_cast<double>(shares.size());
  }
};

/// The same with fewer digits, for every token.
struct StoredEnergy {
  float terms = 0, rounding = 0;

  void set(const Energy& energy) {
    terms = static_cast<float>(energy.terms), rounding = static_cast<float>(energy.rounding);
  }
  void add(const Energy& energy) { set({get().terms + energy.terms, get().rounding + energy.rounding}); }
  Energy get() const { return {static_cast<double>(terms), static_cast<double>(rounding)}; }
};

}  // namespace kda_check::kda
