// Answers to one problem, measured against references in one pass of the oracle.
#pragma once

#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "engine/answered.hpp"
#include "engine/twins.hpp"
#include "judge/measures/comparison.hpp"
#include "judge/verdict.hpp"
#include "kda/bounds/gate_statistics.hpp"
#include "kda/bounds/operand_sizes.hpp"
#include "kda/bounds/term_energies.hpp"
#include "kda/truth/gradient_oracle.hpp"
#include "kda/truth/oracle.hpp"

namespace kda_check::engine {

/// An answer held against the oracle (expected null) or against another answer.
struct Pairing {
  const Answered* got = nullptr;
  const Answered* expected = nullptr;
  bool same_bits = false;                    ///< nothing may differ: a replay
  const Computation* computation = nullptr;  ///< compared with emulated kernels, too; null: it is not
  plan::Names tensors = {};                  ///< that both sides have
  judge::ComparisonOptions options = {};
};

/// What limits follow from beside the answers.
struct LimitGrounds {
  kda::TermEnergies energies;
  kda::OperandSizes operands;
};
/// With chunks of that size.
LimitGrounds limit_grounds(const kda::Problem& problem, kda::Pass pass, std::size_t chunk_size, int threads);

/// What the pairings of one pass share.
struct Truth {
  const kda::Problem& problem;
  kda::Pass pass;
  std::optional<kda::OracleOptions> oracle;  ///< nullopt: no oracle, hence no magnitudes
  std::size_t chunk_size = 64;               ///< of the chunk forms, for the magnitudes of their gradients
  int threads = 1;
  std::size_t memory_budget = 0;  ///< for the truth of gradients
  /// Of the gates in chunks of a size.
  std::function<const kda::GateStatistics&(std::size_t chunk_size)> gates;
  /// With chunks of a size; who asks first may have to compute them.
  std::function<std::shared_future<LimitGrounds>(std::size_t chunk_size)> grounds;
  std::size_t heads_of_twins = 1;  ///< query heads at once
  Twins::CpuInstead twins_on_cpu_instead = {};
  kda::OracleSink also = {};  ///< sees what the oracle of the forward pass hands out, too
  double seconds = 0;         ///< that the oracle takes, as planned
};

/// What was measured of one tensor of a pairing, not yet judged.
struct Measured {
  std::size_t pairing;
  std::string tensor;
  const tensor::Tensor* got;
  judge::Measures measures;
  judge::TokenSeries series;         ///< empty unless the options ask for it
  std::vector<judge::Limit> limits;  ///< derived
  judge::Evidence evidence;
  std::optional<double> truth_error = {};  ///< over magnitudes, at most: of a truth in fp64
};

/// In the order of the pairings and of their tensors. The oracle runs once for all of them. Throws
/// Error{input} when the truth of the gradients does not fit the budget.
std::vector<Measured> measured(const Truth& truth, const std::vector<Pairing>& pairings);

/// Throws Error{input} with `hint` when the truth of the gradients would take more than `budget` bytes.
void check_gradient_memory(const kda::Problem& problem, int threads, std::size_t budget,
                           const std::string& hint);

}  // namespace kda_check::engine
