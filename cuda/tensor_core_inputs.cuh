// The inputs of a chunk of a head, for tensor cores: q and k as they are stored, the running sums of the
// gates, beta, reciprocal norms (F1).
#pragma once

#include "tensor_core_chunk.cuh"
#include "tensor_core_inverse.cuh"

namespace kda_check::cuda {

using kda::DecayForm;
using numeric::DType;

/// Warps of a block that prepares a chunk: one for each tile of scores.
constexpr int preparing_warps = lower_blocks, preparing_threads = preparing_warps * warp_lanes;

/// The image comes first: what is in its place before is read where it lies.
template <int width>
struct PrepareShared {
  ChunkImage<width> image;
  float G[image_rows][width + 8];  ///< rows in different banks
  float L[lower_blocks * block_words];
  float q_norm[image_rows], k_norm[image_rows];  ///< reciprocal
  int next_group;                                ///< of scores by pairs
};

#ifdef KDA_CHECK_SM90

/// One chunk of one head.
struct ChunkOfHead {
  int local, head, rows;
  std::size_t chunk, token;

  __device__ explicit ChunkOfHead(const TensorCoreWork& work)
      : local(static_cast<int>(blockIdx.x % work.heads)),
        head(work.first_head + local),
        chunk(blockIdx.x / work.heads) {
    token = work.chunks[chunk].first, rows = static_cast<int>(work.chunks[chunk].count);
  }
};

template <DType dtype, int width>
class ChunkInputs {
 public:
  using Image = ChunkImage<width>;
  using Words = Pair<dtype>;

  __device__ ChunkInputs(const DeviceProblem& p, const TensorCoreWork& work, PrepareShared<width>& shared)
      : p_(p),
        work_(work),
        chunk_(work),
        s_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / warp_lanes),
        lane_(thread_ % warp_lanes) {}

 protected:
  static constexpr int pairs = width / 2;
  __device__ std::uint32_t& pair(std::uint16_t* x, int row, int k) const {
    return *reinterpret_cast<std::uint32_t*>(x + Image::template at<width>(row, k));
  }
  __device__ float2 G(int row, int k) const { return *reinterpret_cast<const float2*>(&s_.G[row][k]); }

  /// Rows of q or k, zeros beyond the last and beyond K.
  __device__ void begin_keys(const Tensor& tensor, std::uint16_t* to) const {
    const auto* const from = static_cast<const std::uint16_t*>(tensor.data) +
                             p_.at(chunk_.token, p_.H, p_.query_head(chunk_.head)) * p_.K;
    const std::size_t stride = std::size_t(p_.H) * p_.K;
    for (int unit = thread_; unit < image_rows * width / 8; unit += preparing_threads) {
      const int row = unit / (width / 8), k = unit % (width / 8) * 8;
      std::uint16_t* const target = to + Image::template at<width>(row, k);
      if (p_.K % 8 == 0) {
        const bool is_there = row < chunk_.rows && k < p_.K;
        begin_copy_16(target, is_there ? from + row * stride + k : from, is_there);
      } else {
        for (int e = 0; e < 8; ++e)
          target[e] = row < chunk_.rows && k + e < p_.K ? from[row * stride + k + e] : std::uint16_t(0);
      }
    }
  }

  /// Two neighbouring channels of every so many rows.
  static constexpr int rows_together = preparing_threads / pairs,
                       gates_of_thread = (image_rows + rows_together - 1) / rows_together;
  using Gates = float2[gates_of_thread];
  __device__ int gate_channel() const { return thread_ % pairs * 2; }
  __device__ int gate_row(int i) const { return thread_ / pairs + i * rows_together; }

  /// As they are stored, zeros where there are none; all of them on their way before anybody waits.
  __device__ void fetch_gates(Gates& g) const {
    const int k = gate_channel();
    const std::size_t stride = std::size_t(p_.HV) * p_.K,
                      from = p_.at(chunk_.token, p_.HV, chunk_.head) * p_.K + k;
    const bool has_first = k < p_.K, has_second = k + 1 < p_.K;
    if (p_.K % 2 == 0 && (p_.g.dtype == DType::bf16 || p_.g.dtype == DType::fp16)) {
      const auto* const stored = static_cast<const std::uint16_t*>(p_.g.data) + from;
      std::uint32_t words[gates_of_thread];
#pragma unroll
      for (int i = 0; i < gates_of_thread; ++i)
        words[i] = has_first && gate_row(i) < chunk_.rows
                       ? *reinterpret_cast<const std::uint32_t*>(stored + gate_row(i) * stride)
                       : 0;
      const auto widen = [&](auto format) {
#pragma unroll
        for (int i = 0; i < gates_of_thread; ++i)
          g[i] = {decltype(format)::first(words[i]), decltype(format)::second(words[i])};
      };
      return p_.g.dtype == DType::bf16 ? widen(Pair<DType::bf16>{}) : widen(Pair<DType::fp16>{});
    }
#pragma unroll
    for (int i = 0; i < gates_of_thread; ++i) {
      const bool is_row = gate_row(i) < chunk_.rows;
      g[i] = {is_row && has_first ? load<float>(p_.g, from + gate_row(i) * stride) : 0.0f,
              is_row && has_second ? load<float>(p_.g, from + gate_row(i) * stride + 1) : 0.0f};
    }
  }

  /// log_decay(g, 0 or 1) of both channels of all rows into G, 0 beyond the last row and channel.
  template <class LogDecay>
  __device__ void store_log_decays(const Gates& g, LogDecay log_decay) const {
    const int k = gate_channel();
    const bool has_first = k < p_.K, has_second = k + 1 < p_.K;
#pragma unroll
    for (int i = 0; i < gates_of_thread; ++i) {
      const int row = gate_row(i);
      if (row >= image_rows) break;
      const bool is_row = row < chunk_.rows;
      const float2 x{log_decay(g[i].x, 0), log_decay(g[i].y, 1)};
      *reinterpret_cast<float2*>(&s_.G[row][k]) = {is_row && has_first ? x.x : 0.0f,
                                                   is_row && has_second ? x.y : 0.0f};
    }
  }

  /// To the base 2.
  __device__ void log_decays() const {
    Gates g;
    fetch_gates(g);
    constexpr float log2e = 0x1.715476p+0f;
    if (p_.gate == kda::Gate::none) return store_log_decays(g, [=](float x, int) { return log2e * x; });
    const float amplitude = p_.A_log.data == nullptr ? 1.0f : __expf(load<float>(p_.A_log, chunk_.head));
    const double constant =
        p_.gate == kda::Gate::lower_bound ? p_.lower_bound : -static_cast<double>(amplitude);
    // Of a constant that is 0 the product with the gate itself is what is multiplied.
    const float factor = static_cast<float>((constant != 0 ? constant : 1.0) * 1.4426950408889634);
    const float within = constant != 0 ? 1.0f : 0.0f;
    const bool has_bias = p_.dt_bias.data != nullptr;
    float bias[] = {0.0f, 0.0f};
    for (int e = 0; e < 2; ++e)
      if (has_bias && gate_channel() + e < p_.K)
        bias[e] = load<float>(p_.dt_bias, std::size_t(chunk_.head) * p_.K + gate_channel() + e);
    if (p_.gate == kda::Gate::lower_bound)
      return store_log_decays(g, [=](float x, int e) {
        const float y = has_bias ? x + bias[e] : x;
        return factor * (within * div_full(1.0f, 1.0f + __expf(-(amplitude * y))));
      });
    store_log_decays(g, [=](float x, int e) {
      const float y = has_bias ? x + bias[e] : x;
      const float softplus = lg2_ftz(ex2_ftz(y * log2e) + 1.0f) * 0x1.62e43p-1f;
      return factor * (within * (y > softplus_threshold<float> ? y : softplus));
    });
  }

  __device__ void strengths() {
    if (thread_ >= image_rows) return;
    float beta = 0.0f;
    if (thread_ < chunk_.rows) {
      beta = load<float>(p_.beta, p_.at(chunk_.token + thread_, p_.HV, chunk_.head));
      if (p_.beta_sigmoid) beta = (p_.allow_neg_eigval ? 2.0f : 1.0f) * div_full(1.0f, 1.0f + __expf(-beta));
    }
    s_.image.beta[thread_] = beta;
    if (thread_ == 0) s_.next_group = 0;
  }

  /// Four warps: the running sums of the gates, a thread a channel. The others: norms, 16 lanes a row, each
  /// of which adds up neighbouring channels.
  __device__ void sums_and_norms() {
    if (thread_ < 4 * warp_lanes) {
      if (thread_ >= width) return;
      float sum = s_.G[0][thread_];
#pragma unroll 16
      for (int row = 1; row < image_rows; ++row) {
        float& at = s_.G[row][thread_];
        sum = sum + at;
        at = sum;
      }
      s_.image.decay[thread_] = ex2_ftz(sum);
      return;
    }
    constexpr int norms_together = 2 * (preparing_warps - 4);
    int channels = 1;
    while (16 * channels < p_.K) channels *= 2;
    for (int r = 2 * (warp_ - 4) + lane_ / 16; r < 2 * image_rows; r += norms_together) {
      const int row = r % image_rows;
      const std::uint16_t* const x = r < image_rows ? s_.image.q_start : s_.image.k_start;
      float sum = 0.0f;
      const auto add = [&sum](float element) { sum = fmaf(element, element, sum); };
      if (channels == 8) {
        const uint4 words =
            *reinterpret_cast<const uint4*>(x + Image::template at<width>(row, lane_ % 16 * 8));
        for (const std::uint32_t word : {words.x, words.y, words.z, words.w})
          add(Words::first(word)), add(Words::second(word));
      } else {
        for (int e = 0; e < channels; ++e)
          add(Words::first(x[Image::template at<width>(row, lane_ % 16 * channels + e)]));
      }
#pragma unroll
      for (int side = 8; side > 0; side /= 2) sum = sum + __shfl_xor_sync(whole_warp, sum, side);
      if (lane_ % 16 == 0)
        (r < image_rows ? s_.q_norm : s_.k_norm)[row] =
            p_.qk_l2norm ? div_full(1.0f, sqrt_ftz(sum + 1e-6f)) : 1.0f;
    }
  }

  const DeviceProblem& p_;
  const TensorCoreWork& work_;
  const ChunkOfHead chunk_;
  PrepareShared<width>& s_;
  const int thread_, warp_, lane_;
};

#endif

}  // namespace kda_check::cuda
