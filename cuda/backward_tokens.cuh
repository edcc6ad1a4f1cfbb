// Backwards, a warp for each token and value head: what the kernels before and behind the recurrence share.
#pragma once

#include "problem.cuh"

namespace kda_check::cuda {

constexpr int token_warps = 8;

/// A row of q or k as it is stored, channels l, l + 32, ... in lane l. A warp has it.
template <class T>
class KeyRow {
 public:
  static constexpr int rows = widest_key / warp_lanes;

  __device__ KeyRow(const DeviceProblem& p, const Tensor& tensor, std::size_t query_row) : K_(p.K) {
    lane_ = static_cast<int>(threadIdx.x) % warp_lanes;
#pragma unroll
    for (int r = 0; r < rows; ++r) valid_[r] = lane_ + r * warp_lanes < p.K;
    over_channels([&](int r, int k) { x_[r] = load<T>(tensor, query_row * p.K + k); });
  }

  /// Calls body(r, k) for each channel of this lane.
  template <class Body>
  __device__ void over_channels(Body body) const {
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (valid_[r]) body(r, lane_ + r * warp_lanes);
  }
  /// As the recurrence reads it, but for scale; and the norm it was divided by, if it was.
  template <bool is_fused>
  __device__ T normalised(const DeviceProblem& p, bool by_reciprocal, T (&y)[rows]) const {
    over_channels([&](int r, int) { y[r] = x_[r]; });
    if (!p.qk_l2norm) return T(1);
    const T norm = warp_norm<is_fused>(x_, valid_, K_);
    const T reciprocal = T(1) / norm;
    over_channels([&](int r, int) {
      y[r] = kda::rounded(p.casts.normalised, by_reciprocal ? x_[r] * reciprocal : x_[r] / norm);
    });
    return norm;
  }
  /// tree:32 over the channels of a b, in each lane.
  template <bool is_fused>
  __device__ T dot(const T (&a)[rows], const T (&b)[rows]) const {
    return warp_sum(warp_dot_part<is_fused>(a, b, valid_), K_ < warp_lanes ? K_ : warp_lanes);
  }

 private:
  int K_, lane_;
  bool valid_[rows];
  T x_[rows];
};

/// States are converted element by element, `state_threads` a block: blocks of one state.
constexpr int state_threads = 256;
__host__ __device__ inline int state_blocks(const DeviceProblem& p) {
  return (p.K * p.V + state_threads - 1) / state_threads;
}

}  // namespace kda_check::cuda
