// The columns of a state in tiles, as the kernels of the recurrence take them, and a block of tokens through
// some of these.
#pragma once

#include "kda/head/token_form.hpp"

namespace kda_check::kda {

/// Tiles [first, last) of a state.
struct TileRange {
  std::size_t first, last;
};

/// [K][stride] rows to tiles of [K][lanes], and some of these back.
template <class T>
void to_tiles(const T* rows, std::size_t K, std::size_t stride, std::size_t lanes, T* tiles) {
  for (std::size_t v = 0; v < stride; v += lanes)
    for (std::size_t k = 0; k < K; ++k)
      for (std::size_t lane = 0; lane < lanes; ++lane)
        tiles[v * K + k * lanes + lane] = rows[k * stride + v + lane];
}
template <class T>
void from_tiles(const T* tiles, std::size_t K, std::size_t stride, std::size_t lanes, TileRange range,
                T* rows) {
  for (std::size_t v = range.first * lanes; v < range.last * lanes; v += lanes)
    for (std::size_t k = 0; k < K; ++k)
      for (std::size_t lane = 0; lane < lanes; ++lane)
        rows[k * stride + v + lane] = tiles[v * K + k * lanes + lane];
}

/// Some tokens. `o`: [count][v_stride] rows; `state` is in tiles.
template <class T>
void run_token_tiles(const TokenArithmetic& arithmetic, const TokenSpan<T>& in, std::size_t K,
                     std::size_t v_stride, T scale, TileRange tiles, T* o, T* state) {
  const Kernels<T>& kernel = kernels<T>();
  for (std::size_t tile = tiles.first; tile < tiles.last; ++tile) {
    const std::size_t lane = tile * kernel.tile_lanes;
    const T* const column_beta = in.column_beta == nullptr ? nullptr : in.column_beta + lane;
    if (arithmetic.is_plain()) {
      kernel.recurrent[arithmetic.operations.is_fused](
          {in.count, K, K, v_stride, in.q, in.k, in.decay, in.beta, in.v + lane, o + lane, state + lane * K,
           arithmetic.operations, arithmetic.casts, in.read, column_beta});
    } else {
      kernel.token({in.count, K, kernel.tile_lanes, v_stride, in.q, in.k, in.decay, in.beta, in.v + lane,
                    o + lane, state + lane * K, kernel.tile_lanes, arithmetic.operations, arithmetic.casts,
                    scale, in.read, column_beta, in.write == nullptr ? nullptr : in.write + lane});
    }
  }
}

}  // namespace kda_check::kda
