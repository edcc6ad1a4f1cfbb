// The comparisons of a pass while its truth goes by, which happens once for all of them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/comparing.hpp"
#include "judge/measures/head_energies.hpp"
#include "judge/measures/units_lost.hpp"

namespace kda_check::engine {

/// What is expected of one tensor, as a whole. Comparisons with the oracle, or beside it, share it.
struct Expected {
  judge::HeadEnergies energy, magnitude_energy;  ///< of the values and of their magnitudes
  double spread = 0;                             ///< of dbeta and of sums over tokens
  double chunk_excess = 0;
  std::optional<double> error = {};           ///< over magnitudes, at most: of a recurrence in fp64
  std::vector<double> least_magnitudes = {};  ///< of o: kda::OutputErrors::least_magnitude() by row
  /// The largest error of what lies behind an output, over its magnitude: known with the grounds of limits.
  kda::ProbedErrors behind = {};
};

/// One tensor of one pairing.
struct Ongoing {
  std::size_t pairing;
  std::string tensor;
  const tensor::Tensor* got;
  const tensor::Tensor* expected;  ///< null: the oracle
  std::shared_ptr<Expected> truth;
  std::unique_ptr<judge::Comparison> comparison;
  judge::UnitsSum got_units;
  std::optional<judge::UnitsSum> expected_units;
};

bool both_recur(const Pairing& pairing);

std::vector<Ongoing> ongoing_comparisons(const Truth& truth, const std::vector<Pairing>& pairings);

/// Lets the truth go by, forwards with the twins that measure it. Where there are twins, returns who can give
/// it again.
std::unique_ptr<TruthSource> run_comparisons(const Truth& truth, const std::vector<Pairing>& pairings,
                                             std::vector<Ongoing>& ongoing, Twins& twins);

}  // namespace kda_check::engine
