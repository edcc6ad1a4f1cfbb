// What a block has of a chunk of a head backwards in fp32: keys and gates in shared memory, where the sums
// within the chunk come, too; what is as wide as V is read where the kernels before left it.
#pragma once

#include "cuda/variants/tensor_cores/inputs.cuh"
#include "cuda/variants/tensor_cores/split/backward.cuh"

namespace kda_check::cuda {

template <int width_>
struct SplitGradientShared {
  static constexpr int width = width_;
  using Layout = PrepareShared<width>;
  /// Of a lower triangular chunk, split. Where sums are by pairs a block of the diagonal has numbers, as
  /// lower_block() has them.
  using Scores = std::uint32_t[lower_blocks * split_block_words];

  float q[image_rows * width], k[image_rows * width];  ///< in SplitShared's layout, as all arrays of fp32
  float G[image_rows * width];
  union {
    struct {
      Scores inverse;
      float dA[lower_blocks * block_words];
      float between[lower_blocks * block_words];  ///< the two products with the inverse
    } scores;
    /// What stays within the chunk: dqi, row and column; then what it gives to dq, dk and dG; then dG.
    float sums[3][image_rows * width];
  };
  union {
    struct {
      Scores dAqk, dAkk;
    };
    struct {
      /// 16 columns of V of two arrays, as left factors; of two steps.
      std::uint32_t rows[2][2 * blocks_of_chunk * split_block_words];
      float of_rows[8][width];  ///< k_i dk_i of rows i mod 16, of eight of these
      float of_states[width];   ///< rows of h dh, summed
    } states;
  };
  float beta[image_rows];
  float of_errors[image_rows];                    ///< r e, summed
  float of_keys[image_rows][width / warp_lanes];  ///< row k, summed over the channels of a warp
  std::uint64_t begun;
};
static_assert(sizeof(SplitGradientShared<128>) <= 227 * 1024);

#ifdef KDA_CHECK_SM90

template <int width_>
class SplitGradientInputs {
 public:
  static constexpr int width = width_;
  using Image = SplitImage<width>;
  using Shared = SplitGradientShared<width>;
  using Layout = PrepareShared<width>;

  __device__ SplitGradientInputs(const DeviceProblem& p, const SplitBackwardWork& work, Shared& shared)
      : p_(p),
        work_(work),
        chunk_(work),
        blocks_((chunk_.rows + 15) / 16),
        columns_(value_blocks(p.V)),
        s_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / warp_lanes),
        lane_(thread_ % warp_lanes) {
    __builtin_assume(thread_ >= 0 && thread_ < gradient_threads);
  }

 protected:
  /// All that comes to shared memory, on its way; beta is there.
  __device__ void begin() const {
    const Image& image = reinterpret_cast<const Image*>(work_.images)[begin_of(1)];
    if (thread_ == 0) {
      gate::make(&s_.begun, 1), gate::make_known();
      gate::arrive_expecting(&s_.begun, 3 * sizeof(s_.q) + sizeof(image.Akk_inv));
      begin_load(s_.scores.inverse, image.Akk_inv, sizeof(image.Akk_inv), &s_.begun);
      begin_load(s_.q, work_.split.inputs + begin_of(3 * image_rows * width), 3 * sizeof(s_.q), &s_.begun);
    }
    if (thread_ < image_rows) s_.beta[thread_] = image.beta[thread_];
    __syncthreads();
  }

  static __device__ float exponential_of(float x) { return __expf(x); }

  /// Where the blocks of 16 rows of an array begin that has values, or states.
  __device__ const float* values(const float* array, int block) const {
    return array + begin_of(value_numbers(p_.V)) + block * columns_ * numbers_of_block;
  }
  __device__ const float* states(const float* array, int block) const {
    return array + begin_of(state_numbers(p_.V, width)) + block * columns_ * numbers_of_block;
  }
  __device__ const float* ends(int block, int columns) const {
    return work_.split.ends + begin_of(image_rows * width) +
           (block * (width / 16) + columns) * numbers_of_block;
  }

  static __device__ int place(int row, int k) { return Layout::gate_at(row, k); }
  __device__ float2& pair(float* x, int row, int k) const {
    return *reinterpret_cast<float2*>(x + place(row, k));
  }
  __device__ float G(int row, int k) const { return s_.G[place(row, k)]; }
  __device__ float2 gates(int row, int k) const { return pair(s_.G, row, k); }
  __device__ float query(int row, int k) const { return s_.q[place(row, k)]; }
  __device__ float key(int row, int k) const { return s_.k[place(row, k)]; }
  /// What a lane has of a row of a block: channels 16 columns + 2 t, + 1, + 8 and + 9.
  __device__ float4& four(float* x, int row, int columns) const {
    return *reinterpret_cast<float4*>(x + Layout::row_word(row, 16 * columns + 4 * (lane_ % 4)));
  }

  const DeviceProblem& p_;
  const SplitBackwardWork& work_;
  const ChunkOfHead chunk_;
  const int blocks_, columns_;  ///< of 16 rows; of 16 columns of V
  Shared& s_;
  const int thread_, warp_, lane_;

 private:
  __device__ std::size_t begin_of(std::size_t numbers) const {
    return work_.place(chunk_.chunk, chunk_.local, numbers);
  }
};

#endif

}  // namespace kda_check::cuda
