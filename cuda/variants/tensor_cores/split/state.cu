// The state from chunk to chunk in fp32 on tensor cores, v_new and o (F8 to F11): as
// variants/tensor_cores/state.cu, but operands are split in three, and one image at a time is in shared
// memory.
#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/variants/tensor_cores/split/columns.cuh"

namespace kda_check::cuda {

namespace {

/// What a kernel hands out: o; that and the stages; or what the backward pass reads, and no o.
enum class Leaves { output, stages, states };

/// k_start, beta and the inverse; q_start and Aqk, if there is an o; k_end and the decay.
template <int width, Leaves leaves>
struct PartsOfState {
  using Image = SplitImage<width>;
  static constexpr bool has_output = leaves != Leaves::states;
  static constexpr int count = has_output ? 3 : 2, last = count - 1;
  static __host__ __device__ constexpr ImagePart of(int part) {
    constexpr unsigned q_start = offsetof(Image, q_start), k_end = offsetof(Image, k_end);
    if (part == 0) return {0, q_start};
    return part == last ? ImagePart{k_end, sizeof(Image)} : ImagePart{q_start, k_end};
  }
};

#ifdef KDA_CHECK_SM90

template <class Cut, Leaves leaves>
class SplitColumnsOfState : public SplitColumns<Cut> {
 public:
  using Base = SplitColumns<Cut>;
  using Base::Base;
  using Base::width, Base::channels, Base::rows;
  using typename Base::Image, typename Base::Products, typename Base::Operand, typename Base::Stored;
  using Parts = PartsOfState<width, leaves>;
  using Shared = SplitState<width, Parts>;

  __device__ void take(Shared& shared, unsigned chunk, unsigned step) {
    const Image& image = shared.image;
    const int count = tile_.rows(chunk);
    const std::size_t number = std::size_t{tile_.first_chunk + chunk} * work_.heads + tile_.local;
    if constexpr (leaves == Leaves::stages) this->tell_state(work_.stages.h, chunk, Base::as_it_is);
    if constexpr (leaves == Leaves::states)
      this->leave_blocks(S_, work_.split.h + number * state_numbers(p_.V, width));
    Products writes;
    Stored v;
    if (chunk + 1 < tile_.chunks) this->announce_values(p_.v, chunk + 1);
    gate::wait(&shared.filled[0], step);
    {
      SplitSums<rows> sums;
      this->template multiply<false>(image.k_start, sums);
      sums.finish(writes);
    }
    this->fetch_values(p_.v, v, chunk, count);
    if constexpr (leaves == Leaves::stages) tell_operands(image, v, chunk, count);
    subtract(v, count, writes);
    if constexpr (leaves == Leaves::states)
      this->leave_blocks(writes, work_.split.e + number * value_numbers(p_.V));
    this->weigh(image, writes);
    {
      SplitSums<rows> sums;
      this->multiply_lower(writes, image.Akk_inv, sums);
      sums.finish(writes);
    }
    this->leave(shared, 0);
    if constexpr (leaves == Leaves::stages)
      this->tell_values(work_.stages.v_new, chunk, writes, Base::as_it_is);
    if constexpr (leaves == Leaves::states)
      this->leave_blocks(writes, work_.split.v_new + number * value_numbers(p_.V));
    else
      output(shared, writes, chunk, step, count);
    gate::wait(&shared.filled[Parts::last], step);
    update(image, writes);
    this->leave(shared, Parts::last);
  }

  __device__ void finish() {
    if constexpr (leaves != Leaves::states) this->store(p_.final_state);
  }

 private:
  using Base::lane_, Base::p_, Base::S_, Base::tile_, Base::warp_, Base::work_;

  // Stages, for those who ask.
  /// u, and, beside the first columns of V, w: the inverse times beta v and beta k exp(G).
  __device__ void tell_operands(const Image& image, const Stored& v, unsigned chunk, int count) const {
    const auto solve = [&](Products& x) {
      SplitSums<rows> sums;
      this->multiply_lower(x, image.Akk_inv, sums);
      sums.finish(x);
    };
    {
      Products u{};
      subtract(v, count, u), this->weigh(image, u);
      solve(u);
      this->tell_values(work_.stages.u, chunk, u, Base::as_it_is);
    }
    if (tile_.first_column > 0) return;
    for (int first = warp_ * warp_columns; first < p_.K; first += Cut::columns) {
      Products w{};
      this->each_product(w, chunk, first, p_.K, [this](float& x, std::size_t at) { x = work_.stages.w[at]; });
      solve(w);
      this->each_product(w, chunk, first, p_.K, [this](float x, std::size_t at) { work_.stages.w[at] = x; });
    }
  }

  /// x = v - x
  __device__ void subtract(const Stored& v, int count, Products& x) const {
    this->take_values(p_.v, v, count, x, [](float value, float prediction) { return value - prediction; });
  }
  /// o = scale (q_start h) + Aqk v_new
  __device__ void output(Shared& shared, const Products& v_new, unsigned chunk, unsigned step,
                         int count) const {
    gate::wait(&shared.filled[1], step);
    SplitSums<rows> from_state, sums;
    this->template multiply<false>(shared.image.q_start, from_state);
    from_state.finish(sums.high);
    const float scale = static_cast<float>(p_.scale);
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (float& x : sums.high[r]) x = scale * x;
    this->multiply_lower(v_new, shared.image.Aqk, sums);
    Products o;
    sums.finish(o);
    this->leave(shared, 1);
    this->hand_out(o, chunk, count, p_.o);
  }
  /// S = decay S + k_end^T v_new
  __device__ void update(const Image& image, const Products& v_new) {
    constexpr int together = 8;
#pragma unroll
    for (int first = 0; first < channels; first += together) {
      SplitSums<together> sums;
#pragma unroll
      for (int k = 0; k < rows / 2; ++k) {
        Operand x;
        this->as_operand(v_new[2 * k], v_new[2 * k + 1], x);
        const auto number = [=](int n) { return (first / 2 + n) * Image::row_blocks + k; };
        this->template add<false, 0, 2>(x, image.k_end, number, sums);
        this->template add<false, 2, 2>(x, image.k_end, number, sums);
      }
      float writes[together][4];
      sums.finish(writes);
#pragma unroll
      for (int n = 0; n < together; ++n) {
        const float2 decay =
            *reinterpret_cast<const float2*>(image.decay + 8 * (first + n) + 2 * (lane_ % 4));
        float(&S)[4] = S_[first + n];
        S[0] = fmaf(S[0], decay.x, writes[n][0]), S[1] = fmaf(S[1], decay.y, writes[n][1]);
        S[2] = fmaf(S[2], decay.x, writes[n][2]), S[3] = fmaf(S[3], decay.y, writes[n][3]);
      }
    }
  }
};

#endif

template <class Cut, Leaves leaves>
__global__ void __launch_bounds__(Cut::threads, 1)
    split_state(const __grid_constant__ DeviceProblem p, const __grid_constant__ TensorCoreWork work) {
#ifdef KDA_CHECK_SM90
  extern __shared__ __align__(128) unsigned char memory[];
  take_split_chunks<Cut, PartsOfState<Cut::width, leaves>>(p, work, false, memory, [&](const Tile& tile) {
    return SplitColumnsOfState<Cut, leaves>(p, work, tile, p.initial_state);
  });
#endif
}

}  // namespace

void launch_split_state(const DeviceProblem& p, const TensorCoreWork& work) {
  for_width<narrow_tensor_core_key>(p.K, [&](auto width) {
    const auto launch_as = [&](auto leaves) {
      using Cut = SplitCut<width, 4>;
      launch("gpu-chunk on tensor cores in fp32, state", split_state<Cut, leaves>,
             split_blocks_of<Cut>(p, work), Cut::threads, split_state_bytes<PartsOfState<width, leaves>, Cut>,
             p, work);
    };
    if (work.stages.h != nullptr) return launch_as(std::integral_constant<Leaves, Leaves::stages>{});
    if (work.split.h != nullptr) return launch_as(std::integral_constant<Leaves, Leaves::states>{});
    launch_as(std::integral_constant<Leaves, Leaves::output>{});
  });
}

}  // namespace kda_check::cuda
