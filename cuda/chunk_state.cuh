// The state from chunk to chunk (F8, F9, F11): h = S, v_new = u - w h, S = diag(e^Gn) S + kg^T v_new.
//
// A block carries 64 columns of a head's state through a sequence, in registers: a thread has 4 x 4 elements
// of every 64 rows. w and kg pass through shared memory in tiles of 64 x 64, fetched one or two ahead.
//
// Included by a file for each type that is computed in: these kernels take the compiler longest.
#pragma once

#include <algorithm>

#include "chunk.cuh"
#include "device.hpp"
#include "tile.cuh"

namespace kda_check::cuda {

namespace {

constexpr int most_ring_tiles = 3, least_ring_tiles = 2;

/// Tiles of the ring, then h [K][64], v_new [64][64].
template <class T>
struct Shared {
  T *ring, *h, *v_new;
  int ring_tiles;

  __device__ Shared(void* memory, int K, int tiles) : ring_tiles(tiles) {
    ring = static_cast<T*>(memory);
    h = ring + tiles * tile_elements();
    v_new = h + K * tile_side;
  }
  __host__ __device__ static constexpr int tile_elements() { return tile_side * tile_stride<T>; }
  __device__ T* tile(int step) const { return ring + step % ring_tiles * tile_elements(); }
  static std::size_t bytes(int K, int tiles) {
    return sizeof(T) * (static_cast<std::size_t>(tiles) * tile_elements() + (K + tile_side) * tile_side);
  }
};

/// K <= 64 * groups.
template <class T, bool is_fused, int groups>
class StatePass {
 public:
  __device__ StatePass(const DeviceProblem& p, const ChunkWork<T>& work, Shared<T> shared, int tile,
                       int sequence, int head)
      : p_(p),
        work_(work),
        casts_(p.casts),
        shared_(shared),
        tokens_(work.sequences[sequence]),
        chunks_(work.chunks_of[sequence]),
        state_(std::size_t(sequence) * p.HV + head),
        head_(head),
        first_column_(tile * tile_side),
        columns_(min(tile_side, p.V - first_column_)),
        key_tiles_(tiles_of(p.K)) {}

  __device__ void run() {
    load_state();
    const int ahead = shared_.ring_tiles - 1;
    for (int s = 0; s < ahead; ++s) fetch(s);
    int step = 0;
    for (std::uint32_t c = 0; c < chunks_.count; ++c) {
      const DeviceChunk<T> chunk(p_, work_.C, tokens_, c, head_);
      TileSums<T> sums = {}, u;
      T last_G[groups][4];
      load_u(chunk, u);
      load_last_G(chunk, last_G);
      write_h(c);
      for (int tile = 0; tile < key_tiles_; ++tile, ++step) {
        arrive(step);
        add_product<is_fused>(sums, shared_.tile(step), tile_stride<T>,
                              shared_.h + tile * tile_side * tile_side, tile_side,
                              min(tile_side, p_.K - tile * tile_side));  // w h
      }
      write_v_new(chunk, u, sums);
#pragma unroll
      for (int group = 0; group < groups; ++group) {
        if (group >= key_tiles_) break;
        arrive(step);
        decay(group, last_G[group]);
        add_transposed_product<is_fused>(S_[group], shared_.tile(step), tile_stride<T>, shared_.v_new,
                                         tile_side,
                                         chunk.rows);  // S = diag(e^Gn) S + kg^T v_new
        round_all(casts_.carry, S_[group]);
        ++step;
      }
    }
    __pipeline_wait_prior(0);
    store_state();
  }

 private:
  __device__ int key_of(int group, int r) const { return group * tile_side + place_.transposed_row(r); }
  __device__ int column_of(int c) const { return place_.column + c; }
  __device__ bool is_inside(int group, int r, int c) const {
    return key_of(group, r) < p_.K && column_of(c) < columns_;
  }

  template <class Body>
  __device__ void over_state(Body body) {
#pragma unroll
    for (int group = 0; group < groups; ++group)
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) body(S_[group][r][c], group, r, c);
  }

  // Elements come and go through this thread's places in shared memory, in a loop that is not unrolled: what
  // all element types need, once for each element in registers, would be most of the kernel.
  __device__ T& passing(int group, int r, int c) const {
    return shared_.h[key_of(group, r) * tile_side + column_of(c)];
  }
  template <class Body>
  __device__ void over_places(Body body) const {
#pragma unroll 1
    for (int e = 0; e < 16 * key_tiles_; ++e) {
      const int group = e / 16, r = e / 4 % 4, c = e % 4;
      if (is_inside(group, r, c)) body(passing(group, r, c), key_of(group, r), first_column_ + column_of(c));
    }
  }
  __device__ void load_state() {
    if (p_.initial_state.data != nullptr)
      over_places([&](T& place, int k, int v) {
        place = load<T>(p_.initial_state, state_element(p_, state_, k, v));
      });
    over_state([&](T& s, int group, int r, int c) {
      s = p_.initial_state.data != nullptr && is_inside(group, r, c) ? passing(group, r, c) : T(0);
    });
  }
  /// Behind the last barrier nobody reads h any more.
  __device__ void store_state() {
    over_state([&](T& s, int group, int r, int c) {
      if (is_inside(group, r, c)) passing(group, r, c) = s;
    });
    over_places([&](T& place, int k, int v) {
      store(place, p_.final_state.data, p_.final_state.dtype, state_element(p_, state_, k, v));
    });
  }

  /// Tile `step` of the stream w, .., w, kg, .., kg of one chunk after the other, into the ring.
  __device__ void fetch(int step) {
    const int per_chunk = 2 * key_tiles_, within = step % per_chunk;
    const std::uint32_t c = step / per_chunk;
    if (c < chunks_.count) {
      const DeviceChunk<T> chunk(p_, work_.C, tokens_, c, head_);
      const bool is_w = within < key_tiles_;
      const int first = (is_w ? within : within - key_tiles_) * tile_side;
      const T* const source = chunk.row(is_w ? work_.w : work_.kg, 0, p_.HV, head_, p_.K) + first;
      copy_tile_async(shared_.tile(step), tile_stride<T>,
                      TileSource<T>{source, std::size_t(p_.HV) * p_.K, p_.K}, chunk.rows,
                      min(tile_side, p_.K - first));
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

  /// The state as the products use it, for this block and for chunk_output.cu.
  __device__ void write_h(std::uint32_t c) {
    T* const h = work_.h + ((std::size_t{chunks_.first} + c) * p_.HV + head_) * p_.K * p_.V;
#pragma unroll
    for (int group = 0; group < groups; ++group) {
      TileSums<T> tile;
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) tile[r][c] = S_[group][r][c];
      round_all(casts_.state, tile);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int k = key_of(group, r);
        if (k >= p_.K) continue;
#pragma unroll
        for (int column = 0; column < 4; ++column) {
          shared_.h[k * tile_side + column_of(column)] = tile[r][column];
          if (column_of(column) < columns_)
            h[std::size_t(k) * p_.V + first_column_ + column_of(column)] = tile[r][column];
        }
      }
    }
  }

  __device__ void load_u(const DeviceChunk<T>& chunk, TileSums<T>& u) const {
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        u[r][c] = T(0);
        if (place_.row(r) < chunk.rows && column_of(c) < columns_)
          u[r][c] = chunk.row(work_.u, place_.row(r), p_.HV, head_, p_.V)[first_column_ + column_of(c)];
      }
  }
  __device__ void write_v_new(const DeviceChunk<T>& chunk, const TileSums<T>& u, TileSums<T>& sums) {
    round_all(casts_.prediction, sums);
    TileSums<T> v_new;
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) v_new[r][c] = u[r][c] - sums[r][c];
    round_all(casts_.v_new, v_new);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int i = place_.row(r);
      if (i >= chunk.rows) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        shared_.v_new[i * tile_side + column_of(c)] = v_new[r][c];
        if (column_of(c) < columns_)
          chunk.row(work_.v_new, i, p_.HV, head_, p_.V)[first_column_ + column_of(c)] = v_new[r][c];
      }
    }
  }

  __device__ void load_last_G(const DeviceChunk<T>& chunk, T (&last_G)[groups][4]) const {
    const T* const last = chunk.row(work_.G, chunk.rows - 1, p_.HV, head_, p_.K);
#pragma unroll
    for (int group = 0; group < groups; ++group)
#pragma unroll
      for (int r = 0; r < 4; ++r) last_G[group][r] = key_of(group, r) < p_.K ? last[key_of(group, r)] : T(0);
  }
  __device__ void decay(int group, const T (&last_G)[4]) {
    T factor[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) factor[r] = exponential(p_.exponential, last_G[r]);  // e^Gn
    round_all(casts_.decay, factor);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) S_[group][r][c] = S_[group][r][c] * factor[r];
  }

  const DeviceProblem& p_;
  const ChunkWork<T>& work_;
  const CastPoints casts_;  ///< in registers, for they are asked in the innermost loops
  const Shared<T> shared_;
  const TokenRange tokens_;
  const ChunkRange chunks_;
  const std::size_t state_;
  const int head_, first_column_, columns_, key_tiles_;
  const TilePlace place_;
  TileSums<T> S_[groups];
};

template <class T, bool is_fused, int groups>
__global__ void __launch_bounds__(tile_threads)
    state_kernel(const __grid_constant__ DeviceProblem p, const __grid_constant__ ChunkWork<T> work,
                 int ring_tiles) {
  extern __shared__ __align__(16) unsigned char memory[];
  const unsigned tiles = tiles_of(p.V);
  StatePass<T, is_fused, groups>(p, work, Shared<T>(memory, p.K, ring_tiles), blockIdx.x % tiles,
                                 blockIdx.x / tiles, blockIdx.y)
      .run();
}

template <class T, bool is_fused>
void launch_groups(const DeviceProblem& p, const ChunkWork<T>& work) {
  int ring_tiles = most_ring_tiles;
  while (ring_tiles > least_ring_tiles && Shared<T>::bytes(p.K, ring_tiles) > shared_memory()) --ring_tiles;
  // Blocks of fewer registers share a multiprocessor only in fp32, and the plain arithmetic is the fast one.
  constexpr int fewest = is_fused && sizeof(T) == sizeof(float) ? 1 : 2;
  const auto kernel = p.K <= fewest * tile_side ? state_kernel<T, is_fused, fewest>
                      : p.K <= 2 * tile_side    ? state_kernel<T, is_fused, 2>
                                                : state_kernel<T, is_fused, 4>;
  launch("gpu-chunk, state", kernel, dim3(tiles_of(p.V) * work.sequence_count, p.HV), tile_threads,
         Shared<T>::bytes(p.K, ring_tiles), p, work, ring_tiles);
}

}  // namespace

template <class T>
void launch_chunk_state(bool is_fused, const DeviceProblem& p, const ChunkWork<T>& work) {
  is_fused ? launch_groups<T, true>(p, work) : launch_groups<T, false>(p, work);
}

template <class T>
std::size_t chunk_shared_bytes(int K) {
  return std::max(Shared<T>::bytes(K, least_ring_tiles), scores_shared_bytes<T>());
}

}  // namespace kda_check::cuda
