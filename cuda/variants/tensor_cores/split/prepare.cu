// What a chunk of a head is to its state in fp32: norms, gates, scores, the inverse and operands (F1 to F4,
// F7) as variants/tensor_cores/prepare.cu has them, but with products of split operands, and gates and norms
// as gpu-chunk has them on other cores. A block a chunk, two blocks a processor.
#include "cuda/device/launch.cuh"
#include "cuda/problem/problem.cuh"
#include "cuda/variants/tensor_cores/pairs.cuh"
#include "cuda/variants/tensor_cores/split/inputs.cuh"

namespace kda_check::cuda {

namespace {

#ifdef KDA_CHECK_SM90

template <int width, bool by_pairs, Beside beside>
class SplitPreparation : public SplitInputs<width, beside> {
 public:
  using Inputs = SplitInputs<width, beside>;
  using Inputs::Inputs;
  using typename Inputs::Image, typename Inputs::Layout;

  __device__ void all() {
    this->inputs();
    __syncthreads();
    if constexpr (beside == Beside::stages) tell_sums();
    if constexpr (beside == Beside::left) this->begin_leaving();
    scores();
    operands();
    if constexpr (beside == Beside::left) this->end_leaving();
    __syncthreads();
    if (thread_ >= inverting_threads) return;
    if constexpr (by_pairs) store_diagonal();
    float* const merged = s_.q;  // which nobody reads any more
    invert_chunk<SplitBlocks>(s_.L, merged, warp_, lane_);
    store_inverse(merged);
  }

 private:
  using Inputs::chunk_, Inputs::lane_, Inputs::p_, Inputs::s_, Inputs::thread_, Inputs::warp_, Inputs::work_;
  using Inputs::exponential_of, Inputs::image_, Inputs::keep, Inputs::keep_lower, Inputs::load_four;

  /// Every warp a tile of 16 x 16 scores; by pairs those off the diagonal, then the diagonal's blocks.
  __device__ void scores() const {
    constexpr int tiles = by_pairs ? lower_blocks - blocks_of_chunk : lower_blocks;
    if (warp_ < tiles) {
      int i = by_pairs ? 1 : 0, before = 0;
      while (before + (by_pairs ? i : i + 1) <= warp_) before += by_pairs ? i : i + 1, ++i;
      score_tile(i, warp_ - before);
    }
    if constexpr (by_pairs) score_groups_by_pairs<width>(RowsByPairs{*this}, &s_.next_group, lane_);
  }

  __device__ void score_tile(int i, int j) const {
    const int g = lane_ / 4, t = lane_ % 4, top = score_rows * i, left = score_rows * j;
    const bool is_diagonal = i == j;
    const int there = min(score_rows, chunk_.rows - top);
    const int anchor =
        is_diagonal && work_.decay == DecayForm::anchor_mid ? top + max(min(8, there - 1), 0) : top;
    SplitSums<2> of_q, of_k;
#pragma unroll 1
    for (int columns = 0; columns < width / 16; ++columns) {
      std::uint32_t q_left[parts_of_number][4], k_left[parts_of_number][4], right[2][parts_of_number][2];
      float a[4];
      load_four(s_.G, anchor, columns, t, a);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float g_left[4], g_right[4], q[4], key[4], column[4];
        load_four(s_.G, top + g + 8 * half, columns, t, g_left);
        load_four(s_.G, left + g + 8 * half, columns, t, g_right);
        load_four(s_.q, top + g + 8 * half, columns, t, q);
        load_four(s_.k, top + g + 8 * half, columns, t, key);
        load_four(s_.k, left + g + 8 * half, columns, t, column);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float decay = exponential_of(g_left[e] - a[e]);
          q[e] = q[e] * decay, key[e] = key[e] * decay;
          column[e] = column[e] * exponential_of(a[e] - g_right[e]);
        }
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          split({q[e], q[e + 1]}, q_left, half + e);
          split({key[e], key[e + 1]}, k_left, half + e);
          split({column[e], column[e + 1]}, right[half], e / 2);
        }
      }
      of_q.template add<false, 0>(q_left, right);
      of_k.template add<false, 0>(k_left, right);
    }
    float q[2][4], key[2][4];
    of_q.finish(q), of_k.finish(key);
    float* const L = lower_block(s_.L, i, j);
    const float scale = static_cast<float>(p_.scale);
    float scores[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = g + 8 * half;
      const float beta = s_.beta[top + row];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = 8 * (e / 2) + 2 * t + e % 2;
        float& score = scores[half][e];
        score = scale * q[e / 2][2 * half + e % 2];
        float lower = beta * key[e / 2][2 * half + e % 2];
        // Beyond the last row: what is infinite there must not meet the zeros of others.
        const bool is_there = top + row < chunk_.rows;
        if (!is_there || (is_diagonal && column > row)) score = 0.0f;
        if (!is_there || (is_diagonal && column >= row)) lower = 0.0f;
        L[row * block_row + column] = lower;
      }
    }
    keep_lower(image_.Aqk, i, j, scores, work_.stages.Aqk);
  }

  /// What scores by pairs are made of. Those of k are where L is, left of the diagonal; those of q turned,
  /// in what is left of the block.
  struct RowsByPairs {
    const SplitPreparation& chunk;

    __device__ auto row(int row) const {
      const auto& s = chunk.s_;
      const int first = Layout::gate_at(row, chunk.lane_);
      return [=, &s, beta = s.beta[row]](int m) {
        const int at = first + m * warp_lanes;
        return float3{s.q[at], s.k[at] * beta, s.G[at]};
      };
    }
    __device__ auto column(int j) const {
      const auto& s = chunk.s_;
      const int first = Layout::gate_at(j, chunk.lane_);
      return [=, &s](int m) { return float2{s.k[first + m * warp_lanes], s.G[first + m * warp_lanes]}; };
    }
    static __device__ float decay(float x) { return exponential_of(x); }
    __device__ void store_q(int block, int row, int column, float sum, bool counts) const {
      if (counts)
        lower_block(chunk.s_.L, block, block)[column * block_row + row] =
            static_cast<float>(chunk.p_.scale) * sum;
    }
    __device__ void store_k(int block, int row, int column, float sum, bool counts) const {
      if (counts) lower_block(chunk.s_.L, block, block)[row * block_row + column] = sum;
    }
  };

  /// q exp(G) and k exp(G): a warp a block.
  __device__ void operands() const {
    constexpr int blocks = Image::row_blocks * Image::key_blocks;
#pragma unroll 1
    for (int block = warp_; block < blocks; block += preparing_warps) {
      const int top = block / Image::key_blocks * 16 + lane_ / 4, columns = block % Image::key_blocks;
      float q[2][4], key[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = top + 8 * half, t = lane_ % 4;
        float G[4];
        load_four(s_.G, row, columns, t, G);
        load_four(s_.q, row, columns, t, q[half]), load_four(s_.k, row, columns, t, key[half]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float decay = exponential_of(G[e]);
          q[half][e] = q[half][e] * decay, key[half][e] = key[half][e] * decay;
        }
      }
      const auto place = [=](int row, int k) {
        return int2{block / Image::key_blocks * 16 + row, 16 * columns + k};
      };
      keep(image_.q_start, block, q, work_.stages.qg, p_.K, place);
      keep(image_.k_start, block, key, nullptr, p_.K, place);
    }
  }
  /// element(row, column) of a block of 16 x 16.
  template <class Element>
  __device__ void take_block(BlockNumbers& x, Element element) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x[half][e] = element(lane_ / 4 + 8 * half, 2 * (lane_ % 4) + e % 2 + 8 * (e / 2));
  }
  /// Scores by pairs, which the inverse is about to overwrite: a warp a block of the diagonal.
  __device__ void store_diagonal() const {
    BlockNumbers x;
    const float* const block = lower_block(s_.L, warp_, warp_);
    take_block(x, [=](int row, int c) { return c <= row ? block[c * block_row + row] : 0.0f; });
    keep_lower(image_.Aqk, warp_, warp_, x, work_.stages.Aqk);
    __syncwarp();
  }
  /// The inverse, by those who inverted: a warp a block.
  __device__ void store_inverse(const float* merged) const {
#pragma unroll 1
    for (int number = warp_; number < lower_blocks; number += inverting_threads / warp_lanes) {
      int i = 0;
      while (lower_number(i + 1, 0) <= number) ++i;
      const int j = number - lower_number(i, 0);
      const float* const block =
          i == j ? lower_block(s_.L, i, i) : merged + lower_number(i - 1, j) * block_words;
      BlockNumbers x;
      take_block(x, [=](int row, int c) { return block[row * block_row + c]; });
      keep_lower(image_.Akk_inv, i, j, x, work_.stages.Akk_inv);
    }
  }

  /// Stages, for those who ask: each(row, column, element in [tokens][heads][columns]).
  template <class Each>
  __device__ void each_of_stage(int columns, Each each) const {
    for (int e = thread_; e < chunk_.rows * columns; e += preparing_threads) {
      const int row = e / columns, column = e % columns;
      each(row, column, work_.row(chunk_.token + row, chunk_.local) * columns + column);
    }
  }
  __device__ void tell_sums() const {
    each_of_stage(p_.K, [this](int row, int k, std::size_t at) {
      const int from = Layout::gate_at(row, k);
      work_.stages.G[at] = s_.G[from];
      work_.stages.w[at] = s_.k[from] * s_.beta[row] * exponential_of(s_.G[from]);
    });
    each_of_stage(image_rows, [this](int row, int column, std::size_t at) {
      if (column / 16 > row / 16) work_.stages.Aqk[at] = work_.stages.Akk_inv[at] = 0.0f;
    });
  }
};

#endif

template <int width, bool by_pairs, Beside beside>
__global__ void __launch_bounds__(preparing_threads, 2)
    prepare_split(const __grid_constant__ DeviceProblem p, const __grid_constant__ TensorCoreWork work) {
#ifdef KDA_CHECK_SM90
  extern __shared__ __align__(128) unsigned char memory[];
  SplitPreparation<width, by_pairs, beside>(p, work, *reinterpret_cast<SplitShared<width>*>(memory)).all();
#endif
}

}  // namespace

void launch_split_prepare(const DeviceProblem& p, const TensorCoreWork& work) {
  for_width<narrow_tensor_core_key>(p.K, [&](auto width) {
    const auto launch_kernel = [&](auto by_pairs, auto beside) {
      launch("gpu-chunk on tensor cores in fp32, chunks", prepare_split<width, by_pairs, beside>,
             dim3(static_cast<unsigned>(work.chunk_count) * static_cast<unsigned>(work.heads)),
             preparing_threads, sizeof(SplitShared<width>), p, work);
    };
    const auto launch_beside = [&](auto beside) {
      work.decay == DecayForm::anchor_pair ? launch_kernel(std::true_type{}, beside)
                                           : launch_kernel(std::false_type{}, beside);
    };
    if (work.stages.G != nullptr) return launch_beside(std::integral_constant<Beside, Beside::stages>{});
    if (work.split.inputs != nullptr) return launch_beside(std::integral_constant<Beside, Beside::left>{});
    launch_beside(std::integral_constant<Beside, Beside::nothing>{});
  });
}

}  // namespace kda_check::cuda
