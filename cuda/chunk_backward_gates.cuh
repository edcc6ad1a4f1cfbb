// The two sums that enter dG of a chunk's last row (B3), both tree:32: sum_v h dh of a key, sum_i k_i dk_i.
#pragma once

#include "chunk.cuh"

namespace kda_check::cuda {

/// Products rounded each, added up from the first on, and the sum rounded. A warp has the row; every lane
/// gets the sum.
template <class T>
__device__ T rounded_state_product(kda::Rounding rounding, const T* h, const T* dh, int V) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  T sum = T(0);
  for (int v = 0; v < V; v += warp_lanes) {
    const T mine = v + lane < V ? kda::rounded(rounding, h[v + lane] * dh[v + lane]) : T(0);
    const int count = min(warp_lanes, V - v);
    for (int l = 0; l < count; ++l) sum = sum + __shfl_sync(whole_warp, mine, l);
  }
  return kda::rounded(rounding, sum);
}

/// sum_v h dh of `count` keys, whose rows follow one another. A warp has them; every lane gets the sums.
template <bool is_fused, int keys, class T>
__device__ void state_products(kda::Rounding rounding, const T* h, const T* dh, int V, int count,
                               T (&sums)[keys]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_lanes;
  if (rounding != kda::Rounding::none) {
#pragma unroll
    for (int n = 0; n < keys; ++n)
      if (n < count) sums[n] = rounded_state_product(rounding, h + n * V, dh + n * V, V);
    return;
  }
#pragma unroll 4
  for (int v = lane; v < V; v += warp_lanes)
#pragma unroll
    for (int n = 0; n < keys; ++n) {
      if (n >= count) continue;
      const T a = h[n * V + v], b = dh[n * V + v];
      sums[n] = v == lane ? a * b : multiply_add<is_fused>(a, b, sums[n]);
    }
#pragma unroll
  for (int n = 0; n < keys; ++n)
    if (n < count) sums[n] = warp_sum(sums[n], min(V, warp_lanes));
}

/// sum_i a_i b_i over the rows of a chunk, rows `stride` elements apart, by one thread: running sum l has the
/// rows l and l + 32.
template <bool is_fused, class T>
__device__ T sum_of_rows(const T* a, const T* b, int stride, int rows) {
  T sums[warp_lanes];
#pragma unroll
  for (int l = 0; l < warp_lanes; ++l) {
    if (l >= rows) continue;
    sums[l] = a[l * stride] * b[l * stride];
    const int next = l + warp_lanes;
    if (next < rows) sums[l] = multiply_add<is_fused>(a[next * stride], b[next * stride], sums[l]);
  }
#pragma unroll
  for (int step = 1; step <= 5; ++step) {
    const int half = warp_lanes >> step;
#pragma unroll
    for (int l = 0; l < warp_lanes / 2; ++l)
      if (l < half && l + half < rows) sums[l] = sums[l] + sums[l + half];
  }
  return sums[0];
}

}  // namespace kda_check::cuda
