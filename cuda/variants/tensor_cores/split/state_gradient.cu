// The gradient of the state from chunk to chunk in fp32 on tensor cores, from the last (B2): dh, dv and the
// gradient of v. The mirror of state.cu: do comes where v came.
#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/variants/tensor_cores/split/columns.cuh"

namespace kda_check::cuda {

namespace {

template <int width>
struct PartsOfGradient {
  using Image = SplitImage<width>;
  enum Part { Aqk, k_end, inverse, q_start, k_start, decay, count };
  static __host__ __device__ constexpr ImagePart of(int part) {
    switch (part) {
      case Aqk:
        return {offsetof(Image, Aqk), offsetof(Image, k_end)};
      case k_end:
        return {offsetof(Image, k_end), offsetof(Image, decay)};
      case inverse:  // and beta
        return {offsetof(Image, beta), offsetof(Image, q_start)};
      case q_start:
        return {offsetof(Image, q_start), offsetof(Image, Aqk)};
      case k_start:
        return {0, offsetof(Image, beta)};
      default:
        return {offsetof(Image, decay), sizeof(Image)};
    }
  }
};

#ifdef KDA_CHECK_SM90

/// `tells`: stages, for those who ask.
template <class Cut, bool tells>
class SplitColumnsOfGradient : public SplitColumns<Cut> {
 public:
  using Base = SplitColumns<Cut>;
  using Base::width, Base::channels, Base::rows;
  using typename Base::Image, typename Base::Products, typename Base::Operand, typename Base::Stored;
  using Parts = PartsOfGradient<width>;
  using Shared = SplitState<width, Parts>;

  __device__ SplitColumnsOfGradient(const DeviceProblem& p, const SplitBackwardWork& work, const Tile& tile)
      : Base(p, work, tile, p.state_gradient), backward_(work) {}

  __device__ void take(Shared& shared, unsigned chunk, unsigned step) {
    const Image& image = shared.image;
    const int count = tile_.rows(chunk);
    const std::size_t number = std::size_t{tile_.first_chunk + chunk} * work_.heads + tile_.local,
                      values = number * value_numbers(p_.V);
    Products d_o, x;
    read(chunk, count, d_o);
    this->leave_blocks(d_o, backward_.d_o + values);
    this->leave_blocks(S_, backward_.dh + number * state_numbers(p_.V, width));
    {
      SplitSums<rows> sums;
      gate::wait(&shared.filled[Parts::Aqk], step);
      this->multiply_transposed_lower(d_o, image.Aqk, sums);
      this->leave(shared, Parts::Aqk);
      sums.finish(x);
    }
    if constexpr (tells) {
      this->tell_values(backward_.gradient_stages.dv_local, chunk, x, Base::as_it_is);
      this->tell_state(backward_.gradient_stages.dh, chunk, Base::as_it_is);
    }
    {
      SplitSums<rows> sums;
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.high[r][e] = x[r][e];
      gate::wait(&shared.filled[Parts::k_end], step);
      this->template multiply<true>(image.k_end, sums);
      this->leave(shared, Parts::k_end);
      sums.finish(x);
    }
    this->leave_blocks(x, backward_.dv + values);
    if constexpr (tells) this->tell_values(backward_.gradient_stages.dv, chunk, x, Base::as_it_is);
    {
      SplitSums<rows> sums;
      gate::wait(&shared.filled[Parts::inverse], step);
      this->multiply_transposed_lower(x, image.Akk_inv, sums);
      sums.finish(x);
    }
    this->leave_blocks(x, backward_.r + values);
    this->weigh(image, x);
    this->leave(shared, Parts::inverse);
    this->hand_out(x, chunk, count, p_.gradients[static_cast<int>(kda::Gradient::dv)]);
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[r][e] = -x[r][e];
    gate::wait(&shared.filled[Parts::q_start], step);
    gate::wait(&shared.filled[Parts::k_start], step), gate::wait(&shared.filled[Parts::decay], step);
    update(image, d_o, x);
    this->leave(shared, Parts::q_start);
    this->leave(shared, Parts::k_start), this->leave(shared, Parts::decay);
  }

  __device__ void finish() {
    const MutableTensor& to = p_.gradients[static_cast<int>(kda::Gradient::dinitial_state)];
    if (to.data != nullptr) this->store(to);
  }

 private:
  using Base::lane_, Base::p_, Base::S_, Base::tile_, Base::warp_, Base::work_;

  /// do of this warp's columns.
  __device__ void read(unsigned chunk, int count, Products& d_o) const {
    const Tensor& from = p_.output_gradient;
    if (from.data == nullptr) {
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (float& x : d_o[r]) x = 0.0f;
      return;
    }
    Stored stored;
    this->fetch_values(from, stored, chunk, count);
    if (chunk > 0) this->announce_values(from, chunk - 1);
    this->take_values(from, stored, count, d_o, [](float value, float) { return value; });
  }
  /// D = decay D + (scale q_start^T do - k_start^T dp), which is one sum: a few tiles of channels after the
  /// others.
  __device__ void update(const Image& image, const Products& d_o, const Products& minus_dp) {
    constexpr int together = 8;
    const float scale = static_cast<float>(p_.scale);
#pragma unroll
    for (int first = 0; first < channels; first += together) {
      float writes[together][4];
      {
        SplitSums<together> sums;
        add_rows(d_o, image.q_start, first, sums);
        sums.finish(writes);
      }
      SplitSums<together> sums;
#pragma unroll
      for (int n = 0; n < together; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.high[n][e] = scale * writes[n][e];
      add_rows(minus_dp, image.k_start, first, sums);
      sums.finish(writes);
#pragma unroll
      for (int n = 0; n < together; ++n) {
        const float2 decay =
            *reinterpret_cast<const float2*>(image.decay + 8 * (first + n) + 2 * (lane_ % 4));
        float(&D)[4] = S_[first + n];
        D[0] = fmaf(D[0], decay.x, writes[n][0]), D[1] = fmaf(D[1], decay.y, writes[n][1]);
        D[2] = fmaf(D[2], decay.x, writes[n][2]), D[3] = fmaf(D[3], decay.y, writes[n][3]);
      }
    }
  }
  /// sums += x^T keys, of channels from tile `first` on.
  __device__ void add_rows(const Products& x, const std::uint32_t* keys, int first,
                           SplitSums<8>& sums) const {
#pragma unroll
    for (int k = 0; k < rows / 2; ++k) {
      Operand operand;
      this->as_operand(x[2 * k], x[2 * k + 1], operand);
      const auto number = [=](int n) { return k * Image::key_blocks + first / 2 + n; };
      this->template add<true, 0, 2>(operand, keys, number, sums);
      this->template add<true, 2, 2>(operand, keys, number, sums);
    }
  }

  const SplitBackwardWork& backward_;
};

#endif

template <class Cut, bool tells>
__global__ void __launch_bounds__(Cut::threads, 1)
    split_state_gradient(const __grid_constant__ DeviceProblem p,
                         const __grid_constant__ SplitBackwardWork work) {
#ifdef KDA_CHECK_SM90
  extern __shared__ __align__(128) unsigned char memory[];
  take_split_chunks<Cut, PartsOfGradient<Cut::width>>(p, work, true, memory, [&](const Tile& tile) {
    return SplitColumnsOfGradient<Cut, tells>(p, work, tile);
  });
#endif
}

}  // namespace

void launch_split_state_gradient(const DeviceProblem& p, const SplitBackwardWork& work) {
  for_width<narrow_tensor_core_key>(p.K, [&](auto width) {
    const auto launch_kernel = [&](auto tells) {
      using Cut = SplitCut<width, 4>;
      launch("gpu-chunk on tensor cores in fp32, gradient of the state", split_state_gradient<Cut, tells>,
             split_blocks_of<Cut>(p, work), Cut::threads, split_state_bytes<PartsOfGradient<width>, Cut>, p,
             work);
    };
    work.gradient_stages.dh != nullptr ? launch_kernel(std::true_type{}) : launch_kernel(std::false_type{});
  });
}

}  // namespace kda_check::cuda
