// tree:32 where several lanes of a warp, a strip, share the 32 running sums of one row: each lane has some of
// them and halves these by itself, so that shuffles are left for the last halvings only.
#pragma once

#include <cuda_pipeline.h>

#include "cuda/arithmetic/arithmetic.cuh"

namespace kda_check::cuda {

/// Element x = l + 32 r of a row belongs to running sum l; lane j of a strip has l = j, j + lanes, ... for
/// all r < rows. A row in shared memory lies so that lanes read four of their elements at once and side by
/// side.
template <int lanes_, int rows_>
struct Strip {
  static constexpr int lanes = lanes_, rows = rows_;
  static constexpr int strips = warp_lanes / lanes;  ///< in a warp; neighbouring lanes are in different ones
  static constexpr int sums = warp_lanes / lanes;    ///< of each lane
  static constexpr int elements = rows * sums;       ///< of each lane; number n is sum n % sums, r = n / sums
  static constexpr int width = warp_lanes * rows;    ///< of a row, padding included
  static_assert(elements % 4 == 0);

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % warp_lanes / strips; }
  static __device__ int number() { return static_cast<int>(threadIdx.x) % strips; }
  /// Which element of the row number n is.
  static __device__ int index(int n) { return n / sums * warp_lanes + n % sums * lanes + lane(); }
  /// Where element x of a row is in shared memory.
  static __device__ int place(int x) {
    const int l = x % warp_lanes, n = x / warp_lanes * sums + l / lanes;
    return n / 4 * (4 * lanes) + l % lanes * 4 + n % 4;
  }
  template <class T>
  static __device__ void load(const T* row, T (&x)[elements]) {
#pragma unroll
    for (int n = 0; n < elements; n += 4) {
      const Four<T> four = reinterpret_cast<const Four<T>*>(row)[n / 4 * lanes + lane()];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n + i] = four.x[i];
    }
  }
  /// `mine` of the lane `half` away in this strip.
  template <class T>
  static __device__ T partner(T mine, int half) {
    return __shfl_xor_sync(whole_warp, mine, half * strips);
  }
};

/// The 32 running sums of a row that comes in parts, where they wait for the next part: each lane has its
/// own.
template <class T>
struct CarriedSums {
  T* sums = nullptr;
  bool begins = true, ends = true;  ///< this is the first part, the last
};

/// Sums over rows of `count` elements, or over a part of that many of `length`. whole: as many as a strip
/// has, in one part, and fused: what has to be fast.
template <class Strip, bool whole>
struct StripSum {
  int count, length;
  bool is_fused;

  template <class T>
  __device__ T multiply_add(T a, T b, T c) const {
    if (whole || is_fused) return cuda::multiply_add<true>(a, b, c);
    return cuda::multiply_add<false>(a, b, c);
  }
  __device__ bool has(int n) const { return whole || Strip::index(n) < count; }

  /// This lane's running sums of a b, halved until one is left. Of no use before the last part.
  template <class T>
  __device__ T of_lane(const T (&a)[Strip::elements], const T (&b)[Strip::elements],
                       const CarriedSums<T>& carried = {}) const {
    T sum[Strip::sums];
#pragma unroll
    for (int i = 0; i < Strip::sums; ++i) {
      if (whole || carried.begins) {
        sum[i] = a[i] * b[i];
      } else {
        sum[i] = carried.sums[Strip::index(i)];
        if (has(i)) sum[i] = multiply_add(a[i], b[i], sum[i]);
      }
    }
#pragma unroll
    for (int n = Strip::sums; n < Strip::elements; ++n)
      if (has(n)) sum[n % Strip::sums] = multiply_add(a[n], b[n], sum[n % Strip::sums]);
    if (!whole && !carried.ends)
#pragma unroll
      for (int i = 0; i < Strip::sums; ++i) carried.sums[Strip::index(i)] = sum[i];
#pragma unroll
    for (int half = Strip::sums / 2; half > 0; half /= 2)
#pragma unroll
      for (int i = 0; i < half; ++i)
        if (whole || Strip::index(i + half) < length) sum[i] = sum[i] + sum[i + half];
    return sum[0];
  }
  /// What the lanes have together, in each of them.
  template <class T>
  __device__ T total(T mine) const {
    int used = whole || length >= Strip::lanes ? Strip::lanes : length;
#pragma unroll
    for (int half = Strip::lanes / 2; half > 0; half /= 2) {
      const T other = Strip::partner(mine, half);
      const int low = Strip::lane() & (half - 1), high = Strip::lane() & half;
      const bool mine_counts = whole || low + high < used, other_counts = whole || low + (high ^ half) < used;
      if (other_counts) mine = mine_counts ? mine + other : other;
      used = used < half ? used : half;
    }
    return mine;
  }
  /// As many totals as there are values, for less: as the lanes halve, the halves take different values. Each
  /// lane gets that of value_of_lane().
  template <class T, int values>
  __device__ T totals(T (&mine)[values]) const {
    if (!whole && length < Strip::lanes) {
      T result = T(0);
#pragma unroll
      for (int i = 0; i < values; ++i) {
        const T sum = total(mine[i]);
        if (i == value_of_lane<values>()) result = sum;
      }
      return result;
    }
#pragma unroll
    for (int half = Strip::lanes / 2, left = values; half > 0; half /= 2) {
      if (left == 1) {
        mine[0] = mine[0] + Strip::partner(mine[0], half);
        continue;
      }
      left /= 2;
      const bool upper = (Strip::lane() & half) != 0;
#pragma unroll
      for (int i = 0; i < values / 2; ++i) {
        if (i >= left) continue;
        const T kept = upper ? mine[left + i] : mine[i], given = upper ? mine[i] : mine[left + i];
        mine[i] = kept + Strip::partner(given, half);
      }
    }
    return mine[0];
  }
  template <int values>
  static __device__ int value_of_lane() {
    return Strip::lane() / (Strip::lanes / values);
  }
  /// Whether this lane is the one that hands its value on.
  template <int values>
  static __device__ bool has_value() {
    return Strip::lane() % (Strip::lanes / values) == 0;
  }
};

/// Copies one element to shared memory; it is there when its group of copies was waited for, and a barrier
/// has passed.
template <class T>
__device__ void copy_later(T* to, const T* from) {
  __pipeline_memcpy_async(to, from, sizeof(T));
}

}  // namespace kda_check::cuda
