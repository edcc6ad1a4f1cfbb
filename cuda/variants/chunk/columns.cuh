// What is carried from chunk to chunk: the state forwards (state.cuh), its gradient backwards
// (backward_state.cuh). A block carries 64 columns of a head through a sequence, in registers: a thread
// has 4 x 4 elements of every 64 rows. Of each chunk
//
//   carried    goes to memory as products read it
//   rows       are what a product [rows][K] x carried makes of rows that are there: v_new, dv
//   carried    takes what a second product makes of those
//
// The first factors of both products pass through shared memory in tiles of 64 x 64, fetched one or two
// ahead.
#pragma once

#include <algorithm>

#include "cuda/arithmetic/tile.cuh"
#include "cuda/device/device.hpp"
#include "cuda/variants/chunk/chunk.cuh"

namespace kda_check::cuda {

namespace {

constexpr int most_ring_tiles = 3, least_ring_tiles = 2;

/// Tiles of the ring, then carried [K][64], rows [64][64].
template <class T>
struct Shared {
  T *ring, *carried, *rows;
  int ring_tiles;

  __device__ Shared(void* memory, int K, int tiles) : ring_tiles(tiles) {
    ring = static_cast<T*>(memory);
    carried = ring + tiles * tile_elements();
    rows = carried + K * tile_side;
  }
  __host__ __device__ static constexpr int tile_elements() { return tile_side * tile_stride<T>; }
  __device__ T* tile(int step) const { return ring + step % ring_tiles * tile_elements(); }
  static std::size_t bytes(int K, int tiles) {
    return sizeof(T) * (static_cast<std::size_t>(tiles) * tile_elements() + (K + tile_side) * tile_side);
  }
  /// As many as there is room for.
  static int tiles_that_fit(int K) {
    int tiles = most_ring_tiles;
    while (tiles > least_ring_tiles && bytes(K, tiles) > shared_memory()) --tiles;
    return tiles;
  }
};

/// A block for each 64 columns of a head of a sequence: number blockIdx.x, head blockIdx.y.
struct ColumnBlock {
  int tile, sequence, local;
  __device__ explicit ColumnBlock(const DeviceProblem& p) {
    const unsigned tiles = tiles_of(p.V);
    tile = static_cast<int>(blockIdx.x % tiles), sequence = static_cast<int>(blockIdx.x / tiles);
    local = static_cast<int>(blockIdx.y);
  }
};

/// K <= 64 * groups. `Pass` has what the two directions have of their own:
///
///   from_the_end              the last chunk is the first
///   first(), second()         what is fetched, the left factors: [tokens][heads][K]
///   given()                   the rows that are there: [tokens][heads][V]
///   finish_rows(sums, given)  from first() x carried to the rows
///   rows()                    where they go: [tokens][heads][V]
///   operand(), exact()        [chunks][heads][K][V] what is carried goes there: rounded by rounding(), and
///                             as it is (null: nobody asks)
///   add_chunk(group, decay, tile, chunk, index)
///                             carries 64 rows across chunk number `index`; decay: of each of this thread's
///                             rows, tile: of second()
template <class Pass, class T, bool is_fused, int groups>
class ColumnPass {
 public:
  __device__ ColumnPass(const DeviceProblem& p, const ChunkWork<T>& work, Shared<T> shared,
                        const ColumnBlock& block)
      : p_(p),
        work_(work),
        casts_(p.casts),
        shared_(shared),
        tokens_(work.sequences[block.sequence]),
        chunks_(work.chunks_of[block.sequence]),
        sequence_(block.sequence),
        local_(block.local),
        first_column_(block.tile * tile_side),
        columns_(min(tile_side, p.V - first_column_)),
        key_tiles_(tiles_of(p.K)) {}

 protected:
  __device__ void over_chunks() {
    Pass& pass = static_cast<Pass&>(*this);
    const int ahead = shared_.ring_tiles - 1;
    for (int s = 0; s < ahead; ++s) fetch(s);
    int step = 0;
    for (std::uint32_t n = 0; n < chunks_.count; ++n) {
      const DeviceChunk<T> chunk = chunk_at(n);
      TileSums<T> sums = {}, given;
      T last_G[groups][4];
      load_given(chunk, given);
      load_last_G(chunk, last_G);
      write_carried(index_at(n));
      for (int tile = 0; tile < key_tiles_; ++tile, ++step) {
        arrive(step);
        add_product<is_fused>(sums, shared_.tile(step), tile_stride<T>,
                              shared_.carried + tile * tile_side * tile_side, tile_side,
                              min(tile_side, p_.K - tile * tile_side));
      }
      pass.finish_rows(sums, given);
      write_rows(chunk, sums);
#pragma unroll
      for (int group = 0; group < groups; ++group) {
        if (group >= key_tiles_) break;
        arrive(step);
        T decay[4];
        decays(last_G[group], decay);
        pass.add_chunk(group, decay, shared_.tile(step), chunk, index_at(n));
        round_all(casts_.carry, S_[group]);
        ++step;
      }
    }
    __pipeline_wait_prior(0);
  }

  __device__ int key_of(int group, int r) const { return group * tile_side + place_.transposed_row(r); }
  __device__ int column_of(int c) const { return place_.column + c; }
  __device__ bool is_inside(int group, int r, int c) const {
    return key_of(group, r) < p_.K && column_of(c) < columns_;
  }

  /// Where chunk `index` of the sequence begins in an array of [chunks][heads][K][V].
  __device__ std::size_t state_of(std::uint32_t index) const {
    return work_.state(std::size_t{chunks_.first} + index, local_, p_);
  }

  // Elements come and go through this thread's places in shared memory, in a loop that is not unrolled: what
  // all element types need, once for each element in registers, would be most of the kernel.
  __device__ void load_carried(const Tensor& states) {
    const std::size_t state = stored_state();
    if (states.data != nullptr)
      over_places([&](T& place, int k, int v) { place = load<T>(states, state_element(p_, state, k, v)); });
    over_elements([&](T& s, int group, int r, int c) {
      s = states.data != nullptr && is_inside(group, r, c) ? passing(group, r, c) : T(0);
    });
  }
  /// Behind the last barrier nobody reads what was carried there any more.
  __device__ void store_carried(const MutableTensor& states) {
    if (states.data == nullptr) return;
    const std::size_t state = stored_state();
    over_elements([&](T& s, int group, int r, int c) {
      if (is_inside(group, r, c)) passing(group, r, c) = s;
    });
    over_places([&](T& place, int k, int v) {
      store(place, states.data, states.dtype, state_element(p_, state, k, v));
    });
  }

 private:
  __device__ std::uint32_t index_at(std::uint32_t n) const {
    return Pass::from_the_end ? chunks_.count - 1 - n : n;
  }
  __device__ DeviceChunk<T> chunk_at(std::uint32_t n) const {
    return DeviceChunk<T>(work_, tokens_, index_at(n), local_);
  }
  __device__ std::size_t stored_state() const {
    return std::size_t(sequence_) * p_.HV + work_.first_head + local_;
  }

  template <class Body>
  __device__ void over_elements(Body body) {
#pragma unroll
    for (int group = 0; group < groups; ++group)
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) body(S_[group][r][c], group, r, c);
  }
  __device__ T& passing(int group, int r, int c) const {
    return shared_.carried[key_of(group, r) * tile_side + column_of(c)];
  }
  template <class Body>
  __device__ void over_places(Body body) const {
#pragma unroll 1
    for (int e = 0; e < 16 * key_tiles_; ++e) {
      const int group = e / 16, r = e / 4 % 4, c = e % 4;
      if (is_inside(group, r, c)) body(passing(group, r, c), key_of(group, r), first_column_ + column_of(c));
    }
  }

  /// Tile `step` of the stream first, .., first, second, .., second of one chunk after the other, into the
  /// ring.
  __device__ void fetch(int step) {
    const int per_chunk = 2 * key_tiles_, within = step % per_chunk;
    const std::uint32_t n = step / per_chunk;
    if (n < chunks_.count) {
      const Pass& pass = static_cast<const Pass&>(*this);
      const DeviceChunk<T> chunk = chunk_at(n);
      const bool is_first = within < key_tiles_;
      const int column = (is_first ? within : within - key_tiles_) * tile_side;
      const T* const source = chunk.row(is_first ? pass.first() : pass.second(), 0, p_.K) + column;
      copy_tile_async(shared_.tile(step), tile_stride<T>, TileSource<T>{source, chunk.stride(p_.K), p_.K},
                      chunk.rows, min(tile_side, p_.K - column));
    }
    __pipeline_commit();  // one group for each step, so that waiting can count them
  }
  /// Waits for tile `step`; behind the barrier nobody reads the tile before it any more.
  __device__ void arrive(int step) {
    const int ahead = shared_.ring_tiles - 1;
    __pipeline_wait_prior(ahead - 1);
    __syncthreads();
    fetch(step + ahead);
  }

  /// What is carried as products use it, for this block and for others.
  __device__ void write_carried(std::uint32_t chunk) {
    const Pass& pass = static_cast<const Pass&>(*this);
    const std::size_t state = state_of(chunk);
#pragma unroll
    for (int group = 0; group < groups; ++group) {
      TileSums<T> tile;
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) tile[r][c] = S_[group][r][c];
      round_all(pass.rounding(), tile);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int k = key_of(group, r);
        if (k >= p_.K) continue;
        const std::size_t row = state + std::size_t(k) * p_.V + first_column_;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          shared_.carried[k * tile_side + column_of(c)] = tile[r][c];
          if (column_of(c) >= columns_) continue;
          pass.operand()[row + column_of(c)] = tile[r][c];
          if (pass.exact() != nullptr) pass.exact()[row + column_of(c)] = S_[group][r][c];
        }
      }
    }
  }

  __device__ void load_given(const DeviceChunk<T>& chunk, TileSums<T>& given) const {
    const Pass& pass = static_cast<const Pass&>(*this);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        given[r][c] = T(0);
        if (place_.row(r) < chunk.rows && column_of(c) < columns_)
          given[r][c] = chunk.row(pass.given(), place_.row(r), p_.V)[first_column_ + column_of(c)];
      }
  }
  __device__ void write_rows(const DeviceChunk<T>& chunk, const TileSums<T>& rows) {
    const Pass& pass = static_cast<const Pass&>(*this);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int i = place_.row(r);
      if (i >= chunk.rows) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        shared_.rows[i * tile_side + column_of(c)] = rows[r][c];
        if (column_of(c) < columns_)
          chunk.row(pass.rows(), i, p_.V)[first_column_ + column_of(c)] = rows[r][c];
      }
    }
  }

  __device__ void load_last_G(const DeviceChunk<T>& chunk, T (&last_G)[groups][4]) const {
    const T* const last = chunk.row(work_.G, chunk.rows - 1, p_.K);
#pragma unroll
    for (int group = 0; group < groups; ++group)
#pragma unroll
      for (int r = 0; r < 4; ++r) last_G[group][r] = key_of(group, r) < p_.K ? last[key_of(group, r)] : T(0);
  }
  /// e^Gn
  __device__ void decays(const T (&last_G)[4], T (&decay)[4]) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) decay[r] = exponential(p_.exponential, last_G[r]);
    round_all(casts_.decay, decay);
  }

 protected:
  const DeviceProblem& p_;
  const ChunkWork<T>& work_;
  const CastPoints casts_;  ///< in registers, for they are asked in the innermost loops
  const Shared<T> shared_;
  const TokenRange tokens_;
  const PieceRange chunks_;
  const int sequence_, local_, first_column_, columns_, key_tiles_;
  const TilePlace place_;
  TileSums<T> S_[groups];  ///< what is carried
};

/// As many groups as K needs, of kernels for 1, 2 and 4; blocks of fewer registers share a multiprocessor
/// only in fp32, and the plain arithmetic is the fast one.
template <class T, bool is_fused, class Kernels>
auto kernel_for_groups(int K, const Kernels& kernels) {
  constexpr int fewest = is_fused && sizeof(T) == sizeof(float) ? 1 : 2;
  return K <= fewest * tile_side ? kernels.template of<fewest>()
         : K <= 2 * tile_side    ? kernels.template of<2>()
                                 : kernels.template of<4>();
}

}  // namespace

}  // namespace kda_check::cuda
