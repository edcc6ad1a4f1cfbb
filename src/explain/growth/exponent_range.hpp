// How far the exponents of one decay form reach, and what that does to its factors (docs/kda.md,
// "Exponent formulations"; limits: docs/regimes.md, "Decay").
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

/// Rows of one chunk as the kernels see them; arrays are [rows][stride]. T is float or double.
template <class T>
struct ChunkRows {
  std::size_t rows, key_dim, stride;
  const T *q, *k;  ///< normalised
  const T* G;      ///< natural-log cumulative gate, finite
  Place at;        ///< row and channel unused
};

/// exp(G_i - a), exp(a - G_j); exp(-G_j), G from the start of the chunk, of tail=factored; exp(G_i - a) of
/// readout=centre.
enum class Side : unsigned char { left, right, tail, readout };

/// What one decay form does on the chunks seen so far.
struct ExponentRange {
  double largest = 0;  ///< exponent of a factor that reaches an unmasked product, natural log
  Side side = Side::left;
  Place place;                    ///< of `largest`
  std::optional<Place> overflow;  ///< the first factor that is not finite, of scores first
  double largest_masked = 0;      ///< pair-late: exponent of an element that the mask removes
  Place masked_place;             ///< of `largest_masked`; its row is the one on the right
  double lost_weight = 0;     ///< largest exp(G_i - G_j), i >= j, one of whose factors is below the normals
  Place lost_place;           ///< the row whose factor that is
  double clamped_excess = 0;  ///< powers of two by which an exponent exceeded the clamp
  double weight_error = 0;    ///< largest |clamped - true| exp(G_i - G_j) of an unmasked pair
  Place wrong_place;          ///< of `weight_error`; its row is i

  /// Takes what is worse in `later`, whose chunks come after those seen so far.
  void merge(const ExponentRange& later);
};

/// Exponents beyond which a factor is infinite, or below which it is not normal, when exp is correctly
/// rounded to the format of a computation and its operands are rounded as `casts` says.
struct FactorLimits {
  double overflow, smallest_normal;
};
FactorLimits factor_limits(bool is_double, const kda::CastPoints& casts);

/// Adds one chunk. `anchor_rows` is min(arithmetic.anchor_rows, chunk size).
template <class T>
void scan_exponents(const ChunkRows<T>& chunk, const kda::Arithmetic& form, std::size_t anchor_rows,
                    const kda::CastPoints& casts, ExponentRange& range);

}  // namespace kda_check::explain
