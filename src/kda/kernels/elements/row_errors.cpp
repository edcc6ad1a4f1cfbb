// Errors of rows, sixteen columns at a time: what judge/spread/head_errors.cpp adds up. Loops have no
// branches: a compiler does several columns at once.
#include "kda/kernels/elements/row_error_rules.hpp"
#include "kda/kernels/entries.hpp"

namespace kda_check::kda::KDA_CHECK_ISA {

namespace {

/// One of every sixteen columns, from the first on.
KDA_CHECK_INLINE float total(const float (&sums)[row_lanes]) {
  float sum = 0;
  for (const float one : sums) sum += one;
  return sum;
}

}  // namespace

void row_errors(const RowErrors& row) {
  const double unit = row.unit;
  const float bound = row.bound;
  for (std::size_t begin = 0; begin < row.count; begin += row_lanes) {
    const double* __restrict__ const exact = row.exact + begin;
    float* __restrict__ const values = row.values + begin;
    for (std::size_t i = 0; i < row_lanes; ++i) values[i] = error_of(values[i], exact[i], unit, bound);
  }
}

float row_product(const float* a, const float* b, std::size_t count) {
  float sums[row_lanes] = {};
  for (std::size_t begin = 0; begin < count; begin += row_lanes)
    for (std::size_t i = 0; i < row_lanes; ++i) sums[i] += a[begin + i] * b[begin + i];
  return total(sums);
}

void row_energies(RowEnergies& row) {
  constexpr std::size_t tiles_at_once = 8;
  const float weight = row.weight, along_weight = row.along_weight, bound = row.bound;
  float along[row_lanes] = {};
  for (std::size_t first = 0; first < row.count; first += tiles_at_once * row_lanes) {
    float squares[tiles_at_once][row_lanes] = {};
    const std::size_t left = (row.count - first) / row_lanes,
                      tiles = left < tiles_at_once ? left : tiles_at_once;
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      const std::size_t begin = first + tile * row_lanes;
      const float* __restrict__ const error = row.error + begin;
      const float* __restrict__ const truth = row.truth + begin;
      float* __restrict__ const column = row.columns + begin;
      float* __restrict__ const column_along = row.columns_along + begin;
      for (std::size_t i = 0; i < row_lanes; ++i) {
        const float excess = excess_of(error[i], weight, bound);
        squares[tile][i] = excess * excess;
        column[i] += squares[tile][i];
        const float slope = slope_of(error[i], truth[i], along_weight);
        column_along[i] += slope, along[i] += slope;
      }
    }
    // Side by side: each is a chain of additions.
    float sums[tiles_at_once] = {};
    for (std::size_t i = 0; i < row_lanes; ++i)
      for (std::size_t tile = 0; tile < tiles_at_once; ++tile) sums[tile] += squares[tile][i];
    for (std::size_t tile = 0; tile < tiles; ++tile) row.tiles[first / row_lanes + tile] = sums[tile];
  }
  row.along = total(along);
}

}  // namespace kda_check::kda::KDA_CHECK_ISA
