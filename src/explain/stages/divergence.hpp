// Where an inverse without correct digits ends: what it is multiplied by leaves the range of the formats of
// the run, at once or after the state has been multiplied by it chunk after chunk. The first value columns
// are followed through a head with the inverse as `doubling` would form it, rounded at the cast points.
// Rounding errors that dominate are not reproducible bit by bit: the size of the state is known to a few
// powers of ten, and a run may end finite just short of the overflow.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "explain/place.hpp"
#include "kda/arithmetic/arithmetic.hpp"

namespace kda_check::explain {

/// One chunk; q, k and G are [rows][stride], q times the scale, beta [rows], v [rows][columns of the probe],
/// L [rows][rows].
struct ProbeChunk {
  std::size_t rows, key_dim, stride;
  const double *q, *k, *read, *G, *beta, *v;
  const std::vector<double>* L;
  Place at;
};

class DivergenceProbe {
 public:
  /// `side`: rows of the blocks inverted by doubling; `casts`: where the run rounds, and so overflows;
  /// `output`: how it stores o; `state`: [key_dim][columns].
  DivergenceProbe(std::size_t side, const kda::CastPoints& casts, kda::Rounding output, std::size_t columns,
                  std::vector<double> state)
      : side_(side), casts_(casts), output_(output), columns_(columns), state_(std::move(state)) {}

  /// `amplification`: BlockGrowth::doubling_amplification of this chunk.
  void add(const ProbeChunk& chunk, double amplification);
  /// The chunk in which a stage exceeds its format.
  const std::optional<Place>& overflow() const { return overflow_; }

 private:
  std::vector<double> harmless_values(const ProbeChunk& chunk) const;
  std::vector<double> rounded_values(const ProbeChunk& chunk) const;
  bool advance(const ProbeChunk& chunk, const std::vector<double>& v_new);

  std::size_t side_;
  kda::CastPoints casts_;
  kda::Rounding output_;
  std::size_t columns_;
  std::vector<double> state_;
  std::optional<Place> overflow_;
};

}  // namespace kda_check::explain
