// The gradient of the state from chunk to chunk on tensor cores, from the last (B2): dh, dv and the gradient
// of v. The mirror of state.cu: do comes where v came.
#include "cuda/variants/tensor_cores/narrow_columns.cuh"

namespace kda_check::cuda {

namespace {

#ifdef KDA_CHECK_SM90

/// `tells`: stages, for those who ask.
template <DType dtype, class Cut, bool tells>
class ColumnsOfGradient : public NarrowColumns<dtype, Cut> {
 public:
  using Base = NarrowColumns<dtype, Cut>;
  using Base::width, Base::rows, Base::channels;
  using typename Base::Image, typename Base::Words, typename Base::Products, typename Base::Operand,
      typename Base::StateOperand;

  __device__ ColumnsOfGradient(const DeviceProblem& p, const TensorCoreBackwardWork& work, const Tile& tile)
      : Base(p, work, tile, p.state_gradient), backward_(work) {}

  __device__ void take(Stage<Cut>& stage, unsigned chunk) {
    const std::uint32_t image = shared_address(&stage.image);
    const int count = tile_.rows(chunk);
    const std::size_t number = std::size_t{tile_.first_chunk + chunk} * work_.heads + tile_.local;
    const std::size_t state = number * state_image(p_.V, width), values = number * value_image(p_.V);
    Operand d_o, dp;
    read(stage, d_o);
    {
      Products sum{};
      this->multiply_transposed_lower(d_o, image, offsetof(Image, Aqk), sum);
      if constexpr (tells) {
        this->tell_values(backward_.gradient_stages.dv_local, chunk, sum, Base::as_it_is);
        this->tell_state(backward_.gradient_stages.dh, chunk, Base::rounded);
      }
      StateOperand dh;
      this->as_operand(dh);
      this->template leave<width>(dh, backward_.dh + state);
      this->multiply(dh, image, offsetof(Image, k_end), sum);
      if constexpr (tells) this->tell_values(backward_.gradient_stages.dv, chunk, sum, Base::rounded);
      Operand dv;
      this->as_operand(sum, dv);
      this->template leave<image_rows>(dv, backward_.dv + values);
      Products of_value{};
      this->multiply_transposed_lower(dv, image, offsetof(Image, Akk_inv), of_value);
      weigh(stage.image, of_value);
      this->as_operand(of_value, dp);
      this->hand_out(stage, chunk, count, of_value, p_.gradients[static_cast<int>(kda::Gradient::dv)]);
    }
    this->template leave<image_rows>(dp, backward_.dp + values);
    update(stage.image, d_o, dp);
  }

  __device__ void finish() {
    const MutableTensor& to = p_.gradients[static_cast<int>(kda::Gradient::dinitial_state)];
    if (to.data != nullptr) this->store(to);
  }

 private:
  using Base::p_, Base::work_, Base::tile_, Base::lane_, Base::S_;

  /// do of this warp's columns.
  __device__ void read(const Stage<Cut>& stage, Operand& d_o) const {
#pragma unroll
    for (int k = 0; k < rows / 2; ++k) load_transposed(d_o[k], this->values_at(stage, 2 * k));
  }
  /// Rows times beta.
  __device__ void weigh(const Image& image, Products& x) const {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const float2 beta = *reinterpret_cast<const float2*>(image.beta + 8 * r + 2 * (lane_ % 4));
      x[r][0] = x[r][0] * beta.x, x[r][1] = x[r][1] * beta.y;
      x[r][2] = x[r][2] * beta.x, x[r][3] = x[r][3] * beta.y;
    }
  }
  /// D = decay D + scale q_start^T do, and then - k_start^T dp: a few tiles of channels after the others, so
  /// that the first product needs few registers.
  __device__ void update(const Image& image, const Operand& d_o, Operand& dp) {
#pragma unroll
    for (int k = 0; k < rows / 2; ++k)
#pragma unroll
      for (std::uint32_t& pair : dp[k]) pair ^= 0x80008000u;  // the opposite
    const std::uint32_t start = shared_address(&image);
    const float scale = static_cast<float>(p_.scale);
#pragma unroll
    for (int n = 0; n < channels; n += 4) {
      float by_output[4][4] = {};
      this->multiply_channels(d_o, start, offsetof(Image, q_start), n, by_output);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float(&D)[4] = S_[n + i];
        const float2 decay = *reinterpret_cast<const float2*>(image.decay + 8 * (n + i) + 2 * (lane_ % 4));
#pragma unroll
        for (int e = 0; e < 4; ++e)
          D[e] = fmaf(D[e], e % 2 == 0 ? decay.x : decay.y, scale * by_output[i][e]);
      }
      this->multiply_channels(dp, start, offsetof(Image, k_start), n, S_ + n);
    }
  }

  const TensorCoreBackwardWork& backward_;
};

#endif

template <DType dtype, class Cut, bool tells>
__global__ void __launch_bounds__(Cut::threads, 1)
    state_gradient_on_tensor_cores(const __grid_constant__ DeviceProblem p,
                                   const __grid_constant__ TensorCoreBackwardWork work) {
#ifdef KDA_CHECK_SM90
  extern __shared__ __align__(128) unsigned char memory[];
  take_chunks<Cut>(p, work, p.output_gradient, true, memory,
                   [&](const Tile& tile) { return ColumnsOfGradient<dtype, Cut, tells>(p, work, tile); });
#endif
}

}  // namespace

void launch_tensor_core_state_gradient(const DeviceProblem& p, const TensorCoreBackwardWork& work) {
  for_operands<narrow_tensor_core_key>(p.v.dtype, p.K, [&](auto dtype, auto width) {
    const auto launch_kernel = [&](auto cut, auto tells) {
      using Cut = decltype(cut);
      launch("gpu-chunk on tensor cores, gradient of the state",
             state_gradient_on_tensor_cores<dtype, Cut, tells>, blocks_of<Cut>(p, work), Cut::threads,
             sizeof(StateShared<Cut>), p, work);
    };
    if (work.gradient_stages.dh != nullptr) return launch_kernel(Cut<width, 4>{}, std::true_type{});
    with_cut<width, 4>(p, work, [&](auto cut) { launch_kernel(cut, std::false_type{}); });
  });
}

}  // namespace kda_check::cuda
