// Where an inverse without correct digits ends: the state is multiplied by it chunk after chunk, until it
// overflows. The first value column is followed through a head with the inverse as `doubling` would form it.
// Rounding errors that dominate are not reproducible bit by bit: the size of the state is known to a few
// powers of ten, and a run may end finite just short of the overflow.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "analysis/place.hpp"
#include "kda/arithmetic.hpp"

namespace kda_check::analysis {

/// One chunk; k and G are [rows][stride], beta and v [rows], L [rows][rows].
struct ProbeChunk {
  std::size_t rows, key_dim, stride;
  const double *k, *G, *beta, *v;
  const std::vector<double>* L;
  Place at;
};

class DivergenceProbe {
 public:
  /// `side`: rows of the blocks inverted by doubling; `operands`: how the factors of its products are
  /// rounded.
  DivergenceProbe(std::size_t side, kda::Rounding operands, std::vector<double> state)
      : side_(side), operands_(operands), state_(std::move(state)) {}

  /// `amplification`: BlockGrowth::doubling_amplification of this chunk.
  void add(const ProbeChunk& chunk, double amplification);
  /// The chunk in which fp32 no longer holds the state.
  const std::optional<Place>& overflow() const { return overflow_; }

 private:
  std::vector<double> inverse_of(const ProbeChunk& chunk, double amplification) const;

  std::size_t side_;
  kda::Rounding operands_;
  std::vector<double> state_;  ///< [key_dim]
  std::optional<Place> overflow_;
};

}  // namespace kda_check::analysis
