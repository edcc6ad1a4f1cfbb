// How large an answer would be if its terms did not cancel, and what rounding them leaves: what the inputs
// say of the condition of a problem (docs/verdicts.md, "Derived limits").
//
// The terms of every sum are given random signs. Then squares add up, and the squares of the elements of the
// state, summed over V, follow a recurrence of their own, whose coefficients v is not in:
//   x_t[k] = (1 - beta k^2)^2 x'_t[k] + beta^2 k^2 (|v_t|^2 + sum over j != k of k_j^2 x'_t[j])
//   x'_t = e^2g_t x_t-1
// A write beta k (v - sum k_j P_j) that rounds the factors of its terms adds to the error what the terms of
// the prediction have, and the error of the state is carried on as the state is:
//   d_t[k] = (1 - beta k^2)^2 d'_t[k] + beta^2 k^2 (sum over j != k of k_j^2 d'_t[j] + 2 sum k_j^2 x'_t[j])
// Backwards the same with do and dht. A sum over V of products of a state and a gradient, or do, takes the
// columns of either as independent of time: each has the share of the energy that it has of v, or of do.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kda/bounds/rounding_probe.hpp"
#include "kda/problem/gradients.hpp"
#include "kda/problem/passes.hpp"
#include "numeric/product_sum.hpp"

namespace kda_check::kda {

/// Sums over the elements of a tensor, of squares.
struct TermEnergy {
  numeric::ProductSum terms;     ///< of what they would be with random signs
  numeric::ProductSum rounding;  ///< of errors on the way, for factors that are off by 1 of themselves
};

/// What rounding predictions leaves, by the way of computing (kda/bounds/rounding_probe.hpp).
struct ErrorEnergy {
  numeric::ProductSum recurrence, solving, writing;
};

/// Of the outputs of every token and head, [B][T][HV], as root mean squares over V.
struct OutputErrors {
  std::vector<double> recurrence, solving, writing;

  /// Of a row's, of those above 0: where the magnitude is 0 so is the output. Infinite: there is none.
  static double least_magnitude(std::span<const double> magnitudes);
  /// The largest multiple of its magnitude that an element may be off by, from the least of every row.
  ProbedErrors over(std::span<const double> least_magnitudes) const;
};

struct TermEnergies {
  TermEnergy o, final_state, checkpoints;
  ErrorEnergy o_error, state_error, checkpoint_error;
  OutputErrors outputs;
  /// Squares of the magnitudes that o would have, were the elements of the state normal.
  numeric::ProductSum o_magnitude;
  /// By Gradient; dA_log and ddt_bias, which are sums of dg over tokens, have none.
  std::array<TermEnergy, gradient_count> gradients;

  /// Null where there is none.
  const TermEnergy* of(std::string_view tensor) const;
  const ErrorEnergy* error_of(std::string_view tensor) const;
};

/// In fp64, over the inputs alone. Energies of problems that leave the range of fp64 may be infinite or NaN.
/// `chunk_size`: of the chunk form.
TermEnergies term_energies(const Problem& problem, Pass pass, std::size_t chunk_size, int threads);

/// Bytes that this takes.
double term_energies_bytes(const Problem& problem, Pass pass, int threads);

}  // namespace kda_check::kda
