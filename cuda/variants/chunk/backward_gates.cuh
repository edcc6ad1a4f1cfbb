// What the states give to dG of a chunk's last row (B3): sum_v h dh of a key, tree:32.
#pragma once

#include "cuda/variants/chunk/chunk.cuh"

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

}  // namespace kda_check::cuda
