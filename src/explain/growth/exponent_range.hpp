// How far the exponents of one decay form reach, and what that does to its factors (docs/kda.md,
// "Exponent formulations"; limits: docs/scenarios.md, "Decay").
//
// A factored form multiplies q or k by exp(G_i - a) on the left and by exp(a - G_j) on the right. Each row of
// a diagonal block meets itself there, unmasked, so every factor that overflows makes an element of Aqk
// infinite or NaN, and with it o; and a factor that is flushed to zero takes the whole weight of a token with
// itself. A factored tail multiplies k by exp(-G_j) in the same way, and an infinite one is in the state that
// the chunk leaves. A readout counts from the middle of what a chunk decays by, and its first rows grow by
// half of that.
#pragma once

#include <cstddef>
#include <optional>

#include "explain/place.hpp"
#include "kda/arithmetic/arithmetic.hpp"

namespace kda_check::explain {

struct ChunkGates {
  std::size_t rows, channels;
  const double* G;         ///< [rows][channels], natural-log cumulative gates, finite
  Place at;                ///< row and channel unused
  double lower_bound = 0;  ///< of a log decay
};

/// exp(G_i - a), exp(a - G_j); exp(-G_j), G from the start of the chunk, of tail=factored; exp(G_i - a) of
/// readout=centre.
enum class Side : unsigned char { left, right, tail, readout };

/// What one decay form does on the chunks seen so far.
struct ExponentRange {
  Peak largest;  ///< exponent of a factor that reaches an unmasked product, natural log
  Side side = Side::left;
  std::optional<Place> overflow;  ///< the first factor that is not finite, of scores first
  Peak masked;  ///< pair-late: exponent of an element that the mask removes; its row is the one on the right
  std::optional<Place> lost;  ///< a row whose weight with itself has a factor below the normals
  double clamped_excess = 0;  ///< powers of two by which an exponent exceeded the clamp
  Peak weight_error;          ///< |clamped - true| exp(G_i - G_j) of an unmasked pair; its row is i

  /// Takes what is worse in `later`, whose chunks come after those seen so far.
  void merge(const ExponentRange& later);
};

/// Exponents beyond which a factor is infinite, or below which it is not normal, when exp is correctly
/// rounded to the format of a computation and what it multiplies is rounded as casts say.
struct FactorLimits {
  double overflow, smallest_normal;  ///< of factored scores
  double pair, readout;              ///< overflow of an exponential of a pair; of a readout's
};
FactorLimits factor_limits(bool is_double, const kda::CastPoints& casts);

/// Adds one chunk. `anchor_rows` is min(arithmetic.anchor_rows, chunk size).
void scan_exponents(const ChunkGates& chunk, const kda::Arithmetic& form, std::size_t anchor_rows,
                    const FactorLimits& limits, ExponentRange& range);

}  // namespace kda_check::explain
