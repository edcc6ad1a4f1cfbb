// The inputs of a chunk of a head in fp32, for split operands: q and k, normalised, the sums of the gates,
// beta (F1), what becomes of the keys at the end of the chunk (F7), and where all of it goes.
#pragma once

#include "cuda/problem/gates.cuh"
#include "cuda/variants/tensor_cores/inputs.cuh"
#include "cuda/variants/tensor_cores/split/backward.cuh"

namespace kda_check::cuda {

/// Of q, k and G four numbers that a lane of a product has lie together (PrepareShared::gate_at).
template <int width>
struct SplitShared {
  float q[image_rows * width], k[image_rows * width];
  float G[image_rows * width];
  float L[lower_blocks * block_words];
  float beta[image_rows];
  int next_group;  ///< of scores by pairs
};

#ifdef KDA_CHECK_SM90

/// What a kernel hands out beside the images: nothing; the stages; or what the backward pass reads.
enum class Beside { nothing, stages, left };

template <int width, Beside beside>
class SplitInputs : public ChunkInputs<DType::fp32, width, SplitShared<width>> {
 public:
  using Inputs = ChunkInputs<DType::fp32, width, SplitShared<width>>;
  using Image = SplitImage<width>;
  using Layout = PrepareShared<width>;

  __device__ SplitInputs(const DeviceProblem& p, const TensorCoreWork& work, SplitShared<width>& shared)
      : Inputs(p, work, shared), image_(reinterpret_cast<Image*>(work.images)[place()]) {}

 protected:
  using Inputs::chunk_, Inputs::lane_, Inputs::p_, Inputs::s_, Inputs::thread_, Inputs::warp_, Inputs::work_;

  /// All of them; what others read is there behind a barrier.
  __device__ void inputs() const {
    announce_rows();
    rows();
    strengths();
    __syncthreads();
    if (p_.qk_l2norm) {
      norms();
      __syncthreads();
    }
    tails();
    __syncthreads();
    if (thread_ < width) sums();
  }
  /// For the backward pass: q, k and G, on their way from one thread behind the barrier that follows. Behind
  /// inputs().
  __device__ void begin_leaving() const {
    static_assert(sizeof(s_.q) == sizeof(s_.k) && sizeof(s_.q) == sizeof(s_.G));
    before_bulk_copies();
    __syncthreads();
    if (thread_ == 0)
      begin_store(work_.split.inputs + place() * 3 * image_rows * width, s_.q, 3 * sizeof(s_.q));
  }
  /// By the same thread, before q is overwritten.
  __device__ void end_leaving() const {
    if (thread_ == 0) wait_for_stores();
  }

  static __device__ float exponential_of(float x) { return __expf(x); }
  __device__ std::size_t place() const { return chunk_.chunk * work_.heads + chunk_.local; }

  /// q, k and g, which are fetched one after the other: a thread a row of one of them.
  __device__ void announce_rows() const {
    const int row = thread_ % image_rows, array = thread_ / image_rows;
    if (row >= chunk_.rows || array > 2) return;
    const auto announce_row = [&](const Tensor& x, int heads, int head) {
      announce(x, (p_.at(chunk_.token, heads, head) + std::size_t(row) * heads) * p_.K, p_.K);
    };
    if (array == 2) return announce_row(p_.g, p_.HV, chunk_.head);
    announce_row(array == 0 ? p_.q : p_.k, p_.H, chunk_.query_head);
  }
  /// One array after the other, and then decay after decay: their code is fetched once.
  __device__ void rows() const {
#pragma unroll 1
    for (int array = 0; array < 3; ++array) {
      const bool is_gate = array == 2;
      typename Inputs::Gates x;
      this->fetch_rows(is_gate      ? p_.g
                       : array == 0 ? p_.q
                                    : p_.k,
                       is_gate ? p_.HV : p_.H, is_gate ? chunk_.head : chunk_.query_head, x);
      this->store_rows(x, is_gate ? s_.G : array == 0 ? s_.q : s_.k, [](float x, int) { return x; });
    }
    if (p_.gate == kda::Gate::none) return;
    const float amplitude = gate_amplitude<float>(p_, chunk_.head, exponential_of);
    const int first = this->gate_channel(), end = min(first + 2, p_.K);
#pragma unroll 1
    for (int row = this->gate_row(0); row < chunk_.rows; row += Inputs::rows_together)
#pragma unroll 1
      for (int k = first; k < end; ++k) {
        float& g = s_.G[Layout::gate_at(row, k)];
        g = log_decay(p_, g, chunk_.head, k, amplitude, exponential_of);
      }
  }
  __device__ void strengths() const {
    if (thread_ == 0) s_.next_group = 0;
    if (thread_ >= image_rows) return;
    const std::size_t at = p_.at(chunk_.token + min(thread_, chunk_.rows - 1), p_.HV, chunk_.head);
    const float beta = write_strength(p_, load<float>(p_.beta, at), exponential_of);
    s_.beta[thread_] = image_.beta[thread_] = thread_ < chunk_.rows ? beta : 0.0f;
  }
  /// 16 lanes a row, each of which adds up neighbouring channels.
  __device__ void norms() const {
    int channels = 1;
    while (16 * channels < p_.K) channels *= 2;
    for (int r = 2 * warp_ + lane_ / 16; r < 2 * image_rows; r += 2 * preparing_warps) {
      float* const x = r < image_rows ? s_.q : s_.k;
      const auto element = [&](int e) -> float& {
        return x[Layout::gate_at(r % image_rows, lane_ % 16 * channels + e)];
      };
      float sum = 0.0f;
      for (int e = 0; e < channels; ++e) sum = fmaf(element(e), element(e), sum);
#pragma unroll
      for (int side = 8; side > 0; side /= 2) sum = sum + __shfl_xor_sync(whole_warp, sum, side);
      const float reciprocal = 1.0f / sqrtf(sum + 1e-6f);
      if (beside == Beside::left && lane_ % 16 == 0 && r % image_rows < chunk_.rows)
        (r < image_rows ? work_.left.q_norm
                        : work_.left.k_norm)[work_.row(chunk_.token + r % image_rows, chunk_.local)] =
            reciprocal;
      for (int e = 0; e < channels; ++e) element(e) = element(e) * reciprocal;
    }
  }

  /// k exp(G_n - G), the exponent a running sum from the last row on. Channels c and c + 8 of sixteen by four
  /// threads, each of which has rows 2 t, + 1, + 8 and + 9 of sixteen, as a lane of a block.
  __device__ void tails() const {
    const int t = thread_ % 4, channel = thread_ / 4 % 8 + thread_ / warp_lanes * 16;
    if (channel >= width) return;
    float tail[2] = {0.0f, 0.0f};
#pragma unroll 1
    for (int sixteen = image_rows / 16 - 1; sixteen >= 0; --sixteen) {
      BlockNumbers key{}, decay;
#pragma unroll
      for (int i = 15; i >= 0; --i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (t == i % 8 / 2) key[half][i / 8 * 2 + i % 2] = tail[half];
          tail[half] = tail[half] + s_.G[Layout::gate_at(16 * sixteen + i, channel + 8 * half)];
        }
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = 16 * sixteen + e / 2 * 8 + 2 * t + e % 2;
          decay[half][e] = exponential_of(key[half][e]);
          key[half][e] = s_.k[Layout::gate_at(row, channel + 8 * half)] * decay[half][e];
        }
      if constexpr (beside == Beside::left) {
        constexpr int blocks = width / 16;
        float* const block =
            work_.split.ends +
            (place() * Image::row_blocks * blocks + sixteen * blocks + channel / 16) * numbers_of_block;
#pragma unroll
        for (int low = 0; low < 2; ++low)
          leave_turned(block + low * numbers_of_block / 2, lane_, {decay[0][2 * low], decay[0][2 * low + 1]},
                       {decay[1][2 * low], decay[1][2 * low + 1]});
      }
      keep(image_.k_end, channel / 16 * Image::row_blocks + sixteen, key, work_.stages.kg, p_.K,
           [=](int c, int row) {
             return int2{16 * sixteen + row, channel / 16 * 16 + c};
           });
    }
  }
  /// A thread a channel: G.
  __device__ void sums() const {
    constexpr int together = 16;
    float sum = 0.0f;
#pragma unroll
    for (int first = 0; first < image_rows; first += together) {
      float g[together];
      const auto at = [&](int i) -> float& { return s_.G[Layout::row_word(first + i, thread_)]; };
#pragma unroll
      for (int i = 0; i < together; ++i) g[i] = at(i);
#pragma unroll
      for (int i = 0; i < together; ++i) sum = first + i == 0 ? g[i] : sum + g[i], at(i) = sum;
    }
    image_.decay[Layout::channel_of(thread_)] = exponential_of(sum);
  }

  /// Four channels of a row, from 16 columns + 2 t on.
  __device__ void load_four(const float* from, int row, int columns, int t, float (&x)[4]) const {
    const float4 four = *reinterpret_cast<const float4*>(from + Layout::row_word(row, 16 * columns + 4 * t));
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  }

  /// A block into the image and, for those who ask, into a stage: place(row, column) of the block is where it
  /// is in the chunk.
  template <class Place>
  __device__ void keep(std::uint32_t* blocks, int number, const BlockNumbers& x, float* stage, int columns,
                       Place place) const {
    store_split(blocks + number * split_block_words, lane_, x);
    if constexpr (beside == Beside::stages)
      if (stage != nullptr) tell(x, stage, columns, place);
  }
  template <class Place>
  __device__ void tell(const BlockNumbers& x, float* stage, int columns, Place place) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int2 at = place(lane_ / 4 + 8 * half, 2 * (lane_ % 4) + e % 2 + 8 * (e / 2));
        if (at.x < chunk_.rows && at.y < columns)
          stage[work_.row(chunk_.token + at.x, chunk_.local) * columns + at.y] = x[half][e];
      }
  }
  __device__ void keep_lower(std::uint32_t* blocks, int i, int j, const BlockNumbers& x, float* stage) const {
    keep(blocks, lower_number(i, j), x, stage, image_rows, [=](int row, int c) {
      return int2{16 * i + row, 16 * j + c};
    });
  }

  Image& image_;
};

#endif

}  // namespace kda_check::cuda
