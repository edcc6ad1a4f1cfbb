// Sixteen columns of a state, or of its gradient, that a warp has in registers, transposed, and where they
// come from and go to.
#pragma once

#include "cuda/variants/tensor_cores/feed.cuh"

namespace kda_check::cuda {

/// Blocks that share the columns of V.
inline int tiles_of(int V, int columns) { return (V + columns - 1) / columns; }

#ifdef KDA_CHECK_SM90

/// Rows of a product are columns of V, its columns rows of the chunk or channels.
template <class Cut>
class StateColumns {
 public:
  static constexpr int width = Cut::width;
  static constexpr int channels = width / 8, rows = image_rows / 8;  ///< in tiles of eight
  using Products = float[rows][4];                                   ///< of 16 columns with all rows

  /// `from`: what they begin with; null: nothing.
  __device__ StateColumns(const DeviceProblem& p, const TensorCoreWork& work, const Tile& tile,
                          const Tensor& from)
      : p_(p), work_(work), tile_(tile), warp_(threadIdx.x / warp_lanes), lane_(threadIdx.x % warp_lanes) {
    const auto fill = [&](auto value) {
      each_element([&](float& x, int k, int v, bool is_there) {
        x = is_there ? value(state_element(p_, state(), k, v)) : 0.0f;
      });
    };
    if (from.data == nullptr)
      fill([](std::size_t) { return 0.0f; });
    else if (from.dtype == numeric::DType::fp32)  // all of them on their way before anybody waits
      fill([=](std::size_t i) { return static_cast<const float*>(from.data)[i]; });
    else
      fill([=](std::size_t i) { return load<float>(from, i); });
  }

  __device__ void store(const MutableTensor& to) {
    const auto hand_out = [&](auto keep) {
      each_element([&](float& x, int k, int v, bool is_there) {
        if (is_there) keep(x, state_element(p_, state(), k, v));
      });
    };
    if (to.dtype == numeric::DType::fp32)
      return hand_out([=](float x, std::size_t i) { static_cast<float*>(to.data)[i] = x; });
    hand_out([=](float x, std::size_t i) { cuda::store(x, to.data, to.dtype, i); });
  }

 protected:
  __device__ std::size_t state() const { return std::size_t(tile_.sequence) * p_.HV + tile_.head; }

  template <class Use>
  __device__ void each_element(Use use) {
#pragma unroll
    for (int n = 0; n < channels; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int k = 8 * n + 2 * (lane_ % 4) + e % 2,
                  column = warp_ * warp_columns + lane_ / 4 + 8 * (e / 2);
        use(S_[n][e], k, tile_.first_column + column, k < p_.K && column < tile_.columns);
      }
  }
  /// each(x, element in [tokens][heads][columns]) of this warp's products, whose first column is `first`.
  template <class Products_, class Each>
  __device__ void each_product(Products_& x, unsigned chunk, int first, int columns, Each each) const {
    const std::size_t token = std::size_t{tile_.first_token} + chunk * image_rows;
    const int count = tile_.rows(chunk);
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = 8 * r + 2 * (lane_ % 4) + e % 2, column = first + lane_ / 4 + 8 * (e / 2);
        if (row < count && column < columns)
          each(x[r][e], work_.row(token + row, tile_.local) * columns + column);
      }
  }

  // Stages, for those who ask, each number as `stored` has it.
  /// The state, or its gradient, of a chunk into [chunks][heads][K][V].
  template <class Stored>
  __device__ void tell_state(float* stage, unsigned chunk, Stored stored) {
    float* const to = stage + work_.state(tile_.first_chunk + chunk, tile_.local, p_);
    each_element([&](float& x, int k, int v, bool is_there) {
      if (is_there) to[std::size_t(k) * p_.V + v] = stored(x);
    });
  }
  /// Products of this warp's columns of V into [tokens][heads][V].
  template <class Stored>
  __device__ void tell_values(float* stage, unsigned chunk, const Products& x, Stored stored) const {
    each_product(x, chunk, tile_.first_column + warp_ * warp_columns, p_.V,
                 [=](float number, std::size_t at) { stage[at] = stored(number); });
  }
  static __device__ float as_it_is(float x) { return x; }

  const DeviceProblem& p_;
  const TensorCoreWork& work_;
  const Tile& tile_;
  const int warp_, lane_;
  float S_[channels][4];  ///< of S^T
};

#endif

}  // namespace kda_check::cuda
