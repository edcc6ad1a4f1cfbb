// Backwards, a warp for each token and value head: what the kernels before and behind the recurrence share.
#pragma once

#include <type_traits>

#include "cuda/problem/problem.cuh"

namespace kda_check::cuda {

constexpr int token_warps = 8;

/// A warp's row of `width` elements: l, l + 32, ... in lane l, from element `first` on as many as a lane has
/// room for, `rows`.
template <int rows>
struct LaneRow {
  int from, count;  ///< this lane's first element, how many it has

  __device__ explicit LaneRow(int width, int first = 0)
      : from(first + static_cast<int>(threadIdx.x) % warp_lanes),
        count((width - from + warp_lanes - 1) / warp_lanes) {}
  static constexpr int elements = rows * warp_lanes;  ///< of all lanes

  __device__ bool has(int r) const { return r < count; }
  __device__ int index(int r) const { return from + r * warp_lanes; }
  /// body(r, index) for each element of this lane.
  template <class Body>
  __device__ void over_elements(Body body) const {
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (has(r)) body(r, index(r));
  }
  // All elements are on their way before anybody waits for one, and branches stand around all of them.
  template <class T>
  __device__ void load(const T* row, T (&x)[rows]) const {
    over_elements([&](int r, int at) { x[r] = row[at]; });
  }
  template <class T>
  __device__ void store(const T (&x)[rows], T* row) const {
    over_elements([&](int r, int at) { row[at] = x[r]; });
  }
  __device__ void fetch(const Tensor& tensor, std::size_t row, Stored (&stored)[rows]) const {
    fetch_stored(tensor.data, tensor.dtype, row + from, warp_lanes, count, stored);
  }
  /// x times what is stored from element `row` on.
  template <class T>
  __device__ void times(const Tensor& tensor, std::size_t row, T (&x)[rows]) const {
    Stored stored[rows] = {};
    T factor[rows];
    fetch(tensor, row, stored);
    values_of(stored, tensor.dtype, factor);
    over_elements([&](int r, int) { x[r] = factor[r] * x[r]; });
  }
  template <class T>
  __device__ void store(const T (&x)[rows], const MutableTensor& tensor, std::size_t row) const {
    const auto all = [&](auto dtype) {
      over_elements([&](int r, int at) { cuda::store(x[r], tensor.data, decltype(dtype)::value, row + at); });
    };
    using numeric::DType;
    switch (tensor.dtype) {
      case DType::fp64:
        return all(std::integral_constant<DType, DType::fp64>());
      case DType::fp32:
        return all(std::integral_constant<DType, DType::fp32>());
      case DType::bf16:
        return all(std::integral_constant<DType, DType::bf16>());
      case DType::fp16:
        return all(std::integral_constant<DType, DType::fp16>());
    }
  }
};

/// A row of q or k as it is stored. A warp has it.
template <class T, int rows>
class KeyRow {
 public:
  __device__ KeyRow(const DeviceProblem& p, const Tensor& tensor, std::size_t query_row)
      : row_(p.K), dtype_(tensor.dtype), K_(p.K) {
    row_.fetch(tensor, query_row * p.K, stored_);
  }

  /// As the recurrence reads it, but for scale; and the norm it was divided by, if it was.
  template <bool is_fused>
  __device__ T normalised(const DeviceProblem& p, bool by_reciprocal, T (&y)[rows]) const {
    values_of(stored_, dtype_, y);
    if (!p.qk_l2norm) return T(1);
    bool valid[rows];
    marked(valid);
    const T norm = warp_norm<is_fused>(y, valid, K_);
    const T reciprocal = T(1) / norm;
    row_.over_elements([&](int r, int) {
      y[r] = kda::rounded(p.casts.normalised, by_reciprocal ? y[r] * reciprocal : y[r] / norm);
    });
    return norm;
  }
  /// As it is stored, times a number.
  __device__ void scaled(T factor, T (&y)[rows]) const {
    values_of(stored_, dtype_, y);
    row_.over_elements([&](int r, int) { y[r] = y[r] * factor; });
  }
  /// tree:32 over the channels of a b, in each lane.
  template <bool is_fused>
  __device__ T dot(const T (&a)[rows], const T (&b)[rows]) const {
    bool valid[rows];
    marked(valid);
    return warp_sum(warp_dot_part<is_fused>(a, b, valid), K_ < warp_lanes ? K_ : warp_lanes);
  }

 private:
  __device__ void marked(bool (&valid)[rows]) const {
#pragma unroll
    for (int r = 0; r < rows; ++r) valid[r] = row_.has(r);
  }

  const LaneRow<rows> row_;
  const numeric::DType dtype_;
  const int K_;
  Stored stored_[rows] = {};
};

/// Kernels for as many elements of a lane as K and V need.
template <class Kernels>
auto kernel_for_rows(const DeviceProblem& p, const Kernels& kernels) {
  return p.K <= 4 * warp_lanes && p.V <= 4 * warp_lanes ? kernels.template of<4>()
                                                        : kernels.template of<widest_key / warp_lanes>();
}

/// States are converted element by element, `state_threads` a block: blocks of one state.
constexpr int state_threads = 256;
__host__ __device__ inline int state_blocks(const DeviceProblem& p) {
  return (p.K * p.V + state_threads - 1) / state_threads;
}

}  // namespace kda_check::cuda
