// The state from chunk to chunk on tensor cores, v_new and o (F8 to F11). What warps share are the images,
// which another one keeps ahead of them.
#include "cuda/variants/tensor_cores/narrow_columns.cuh"

namespace kda_check::cuda {

namespace {

/// What a kernel hands out: o; that and the stages; or what the backward pass reads, and no o.
enum class Leaves { output, stages, states };

#ifdef KDA_CHECK_SM90

template <DType dtype, class Cut, Leaves leaves>
class ColumnsOfState : public NarrowColumns<dtype, Cut> {
 public:
  using Base = NarrowColumns<dtype, Cut>;
  using Base::Base, Base::width, Base::rows, Base::channels;
  using typename Base::Image, typename Base::Words, typename Base::Products, typename Base::Operand,
      typename Base::StateOperand;

  __device__ void take(Stage<Cut>& stage, unsigned chunk) {
    const std::uint32_t image = shared_address(&stage.image);
    const int count = tile_.rows(chunk);
    StateOperand h;
    this->as_operand(h);
    Operand writes;
    if constexpr (leaves == Leaves::stages) {
      this->tell_state(work_.stages.h, chunk, Base::rounded);
      tell_operands(stage, chunk, writes);
    }
    const std::size_t number = std::size_t{tile_.first_chunk + chunk} * work_.heads + tile_.local;
    if constexpr (leaves == Leaves::states)
      this->template leave<width>(h, work_.left.h + number * state_image(p_.V, width));
    {
      Products sum{};
      this->multiply(h, image, offsetof(Image, k_start), sum);
      subtract(stage, count, sum, writes);
      Products made{};
      this->multiply_lower(writes, image, offsetof(Image, Akk_inv), made);
      this->as_operand(made, writes);
      if constexpr (leaves == Leaves::stages)
        this->tell_values(work_.stages.v_new, chunk, made, Base::rounded);
    }
    if constexpr (leaves == Leaves::states) {
      this->template leave<image_rows>(writes, work_.left.v_new + number * value_image(p_.V));
    } else {
      Products sum{};
      this->multiply(h, image, offsetof(Image, q_start), sum);
      const float scale = static_cast<float>(p_.scale);
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (float& x : sum[r]) x = scale * x;
      this->multiply_lower(writes, image, offsetof(Image, Aqk), sum);
      this->hand_out(stage, chunk, count, sum, p_.o);
    }
    update(stage.image, writes);
  }

  __device__ void finish() {
    if constexpr (leaves != Leaves::states) this->store(p_.final_state);
  }

 private:
  using Base::each_product;
  using Base::lane_, Base::p_, Base::S_, Base::tile_, Base::warp_, Base::work_;

  // Stages, for those who ask.
  /// u, and, beside the first columns of V, w: the inverse times beta v and beta k 2^G.
  __device__ void tell_operands(const Stage<Cut>& stage, unsigned chunk, Operand& operand) const {
    const std::uint32_t image = shared_address(&stage.image);
    const auto solve = [&](Products& solved) {
      multiply_lower(operand, image, offsetof(Image, Akk_inv), solved);
    };
    {
      Products none{}, u{};
      subtract(stage, tile_.rows(chunk), none, operand);
      solve(u);
      this->tell_values(work_.stages.u, chunk, u, Base::as_it_is);
    }
    if (tile_.first_column > 0) return;
    for (int first = warp_ * warp_columns; first < p_.K; first += Cut::columns) {
      Products keys{}, w{};
      each_product(keys, chunk, first, p_.K, [this](float& x, std::size_t at) { x = work_.stages.w[at]; });
      as_operand(keys, operand);
      solve(w);
      each_product(w, chunk, first, p_.K, [this](float x, std::size_t at) { work_.stages.w[at] = x; });
    }
  }

  /// (v - prediction) beta
  __device__ void subtract(const Stage<Cut>& stage, int count, const Products& prediction,
                           Operand& residual) const {
#pragma unroll
    for (int r = 0; r < rows; r += 2) {
      std::uint32_t v[4];
      load_transposed(v, values_at(stage, r));
#pragma unroll
      for (int next = 0; next < 2; ++next) {
        const int row = 8 * (r + next) + 2 * (lane_ % 4);
        const float2 beta = *reinterpret_cast<const float2*>(stage.image.beta + row);
        const float(&p)[4] = prediction[r + next];
        const bool has_first = row < count, has_second = row + 1 < count;
        residual[r / 2][2 * next] =
            Words::of(has_first ? (Words::first(v[2 * next]) - p[0]) * beta.x : 0.0f,
                      has_second ? (Words::second(v[2 * next]) - p[1]) * beta.y : 0.0f);
        residual[r / 2][2 * next + 1] =
            Words::of(has_first ? (Words::first(v[2 * next + 1]) - p[2]) * beta.x : 0.0f,
                      has_second ? (Words::second(v[2 * next + 1]) - p[3]) * beta.y : 0.0f);
      }
    }
  }
  /// S = decay S + k_end^T v_new
  __device__ void update(const Image& image, const Operand& v_new) {
#pragma unroll
    for (int n = 0; n < channels; ++n) {
      const float2 decay = *reinterpret_cast<const float2*>(image.decay + 8 * n + 2 * (lane_ % 4));
      S_[n][0] = S_[n][0] * decay.x, S_[n][1] = S_[n][1] * decay.y;
      S_[n][2] = S_[n][2] * decay.x, S_[n][3] = S_[n][3] * decay.y;
    }
    const std::uint32_t start =
        shared_address(&image) +
        2 * Image::template at<width>(8 * (this->matrix() % 2) + this->in_matrix(), 8 * (this->matrix() / 2));
#pragma unroll
    for (int k = 0; k < rows / 2; ++k)
#pragma unroll
      for (int n = 0; n < channels; n += 2) {
        std::uint32_t b[4];
        load_transposed(b, Image::further(start, n, offsetof(Image, k_end) + 32 * k * width));
        multiply_16<dtype>(S_[n], v_new[k], b[0], b[1]);
        multiply_16<dtype>(S_[n + 1], v_new[k], b[2], b[3]);
      }
  }
};

#endif

template <DType dtype, class Cut, Leaves leaves>
__global__ void __launch_bounds__(Cut::threads, 1)
    state_on_tensor_cores(const __grid_constant__ DeviceProblem p,
                          const __grid_constant__ TensorCoreWork work) {
#ifdef KDA_CHECK_SM90
  extern __shared__ __align__(128) unsigned char memory[];
  take_chunks<Cut>(p, work, p.v, false, memory, [&](const Tile& tile) {
    return ColumnsOfState<dtype, Cut, leaves>(p, work, tile, p.initial_state);
  });
#endif
}

template <Leaves leaves>
using Leaving = std::integral_constant<Leaves, leaves>;

}  // namespace

bool has_tensor_core_kernels() {
  cudaFuncAttributes attributes{};
  const cudaError_t status =
      cudaFuncGetAttributes(&attributes, state_on_tensor_cores<DType::bf16, Cut<128, 4>, Leaves::output>);
  cudaGetLastError();  // without an image for this device there are none
  return status == cudaSuccess && attributes.ptxVersion >= 90;
}

void launch_tensor_core_state(const DeviceProblem& p, const TensorCoreWork& work) {
  for_operands<widest_tensor_core_key>(p.v.dtype, p.K, [&](auto dtype, auto width) {
    const auto launch_as = [&](auto cut, auto leaves) {
      using Cut = decltype(cut);
      launch("gpu-chunk on tensor cores, state", state_on_tensor_cores<dtype, Cut, leaves>,
             blocks_of<Cut>(p, work), Cut::threads, sizeof(StateShared<Cut>), p, work);
    };
    if (work.stages.h != nullptr) return launch_as(Cut<width, 4>{}, Leaving<Leaves::stages>{});
    if constexpr (width <= narrow_tensor_core_key)
      if (work.left.h != nullptr)
        return with_cut<width, 4>(p, work, [&](auto cut) { launch_as(cut, Leaving<Leaves::states>{}); });
    with_cut<width, 2>(p, work, [&](auto cut) { launch_as(cut, Leaving<Leaves::output>{}); });
  });
}

}  // namespace kda_check::cuda
