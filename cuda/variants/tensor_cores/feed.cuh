// What a block has of V and of the chunks, and the warp that brings chunk after chunk into shared memory, for
// the state on tensor cores.
#pragma once

#include "cuda/variants/tensor_cores/chunk.cuh"
#include "cuda/variants/tensor_cores/instructions.cuh"

namespace kda_check::cuda {

constexpr int warp_columns = 16;

/// What a block has of V: columns for so many warps. As many images as shared memory has room for. With eight
/// of them the first one feeds, too: a ninth would leave all with two thirds of their registers.
template <int width_, int warps_>
struct Cut {
  static constexpr int width = width_, warps = warps_, columns = warps * warp_columns,
                       stages = width > narrow_tensor_core_key ? 1
                                : warps > 4                    ? 2
                                                               : 3;
  static constexpr bool has_feeder = warps <= 4;
  static constexpr int threads = (warps + has_feeder) * warp_lanes;
  /// Bytes between rows of v: what a warp reads at once lies in different banks.
  static constexpr int value_row = 2 * columns + 16;
};

template <class Cut>
struct Stage {
  ChunkImage<Cut::width> image;
  unsigned char v[image_rows * Cut::value_row];  ///< of the tile; then what is stored
};
template <class Cut>
struct StateShared {
  Stage<Cut> stage[Cut::stages];
  std::uint64_t filled[Cut::stages];
  std::uint64_t emptied[Cut::stages];  ///< every lane arrives for itself (docs/gpu.md, "Safety")
};

#ifdef KDA_CHECK_SM90

/// One tile of V of one head of a sequence.
struct Tile {
  int local, head, sequence, first_column, columns;
  unsigned first_token, tokens, first_chunk, chunks;

  __device__ Tile(const DeviceProblem& p, const TensorCoreWork& work, int tile_columns) {
    const unsigned tiles = (p.V + tile_columns - 1) / tile_columns, of_head = blockIdx.x / tiles;
    first_column = static_cast<int>(blockIdx.x % tiles) * tile_columns;
    columns = min(tile_columns, p.V - first_column);
    local = static_cast<int>(of_head % work.heads), sequence = static_cast<int>(of_head / work.heads);
    head = work.first_head + local;
    const TokenRange range = work.sequences[sequence];
    const PieceRange pieces = work.chunks_of[sequence];
    first_token = range.first, tokens = range.count, first_chunk = pieces.first, chunks = pieces.count;
  }
  __device__ int rows(unsigned chunk) const {
    return static_cast<int>(min(static_cast<unsigned>(image_rows), tokens - chunk * image_rows));
  }
  /// Where the tile's part of a row begins in v and o.
  __device__ std::size_t row(const DeviceProblem& p, unsigned chunk, int at) const {
    return p.at(std::size_t{first_token} + chunk * image_rows + at, p.HV, head) * p.V + first_column;
  }
};

/// A chunk and its rows of `values`, of V, into the stage of that step, by a warp, as soon as nobody needs
/// what is there.
template <class Cut>
__device__ void feed(const DeviceProblem& p, const TensorCoreWork& work, const Tile& tile,
                     const Tensor& values, StateShared<Cut>& shared, unsigned step, unsigned chunk) {
  using Image = ChunkImage<Cut::width>;
  constexpr int stages = Cut::stages, value_row = Cut::value_row;
  const int lane = threadIdx.x % warp_lanes;
  const bool is_aligned = p.V % 8 == 0;
  const auto* const images = reinterpret_cast<const Image*>(work.images);
  const auto* const v = static_cast<const std::uint16_t*>(values.data);
  const unsigned at = step % stages, round = step / stages;
  Stage<Cut>& stage = shared.stage[at];
  if (round > 0) gate::wait(&shared.emptied[at], round - 1);
  const int rows = tile.rows(chunk);
  if (lane == 0) {
    gate::arrive_expecting(&shared.filled[at], sizeof(Image));
    begin_load(&stage.image, images + std::size_t{tile.first_chunk + chunk} * work.heads + tile.local,
               sizeof(Image), &shared.filled[at]);
  }
  __syncwarp();
  if (is_aligned) {  // units of 16 bytes: a bulk copy for each row would take longer than the image
    constexpr int units = Cut::columns / 8, rows_together = warp_lanes / units;
    const int column = lane % units * 8;
    const std::uint16_t* from = v + tile.row(p, chunk, lane / units) + column;
    const std::size_t stride = std::size_t(p.HV) * p.V * rows_together;
    if (column < tile.columns)
      for (int row = lane / units; row < rows; row += rows_together, from += stride)
        begin_copy_16(stage.v + row * value_row + 2 * column, from, true);
    gate::arrive_with_copies(&shared.filled[at]);
  } else {
    for (int e = lane; e < rows * tile.columns; e += warp_lanes) {
      const int row = e / tile.columns, column = e % tile.columns;
      *reinterpret_cast<std::uint16_t*>(stage.v + row * value_row + 2 * column) =
          v[tile.row(p, chunk, row) + column];
    }
    gate::arrive(&shared.filled[at]);
  }
  __syncwarp();
}

#endif

}  // namespace kda_check::cuda
