// The inputs of a chunk of a head, for tensor cores: q and k as they are stored, the running sums of the
// gates, beta, reciprocal norms (F1).
#pragma once

#include "cuda/problem/gates.cuh"
#include "cuda/variants/tensor_cores/chunk.cuh"
#include "cuda/variants/tensor_cores/inverse.cuh"

namespace kda_check::cuda {

using kda::DecayForm;
using numeric::DType;

/// Warps of a block that prepares a chunk: one for each tile of scores.
constexpr int preparing_warps = lower_blocks, preparing_threads = preparing_warps * warp_lanes;

/// The image comes first: what is in its place before is read where it lies.
template <int width>
struct PrepareShared {
  ChunkImage<width> image;
  float G[image_rows * width];
  float L[lower_blocks * block_words];
  float q_norm[image_rows], k_norm[image_rows];  ///< reciprocal
  int next_group;                                ///< of scores by pairs

  /// Where channel k of a row is in G. Of sixteen channels those that a lane of a product has, 2 t, + 1, + 8
  /// and + 9, lie together; neighbouring rows lie in different banks.
  static __host__ __device__ constexpr int gate_at(int row, int k) {
    return row_word(row, (k & ~15) + (k & 6) * 2 + (k & 8) / 4 + (k & 1));
  }
  /// Word `word` of a row, whose channel is channel_of(word).
  static __host__ __device__ constexpr int row_word(int row, int word) {
    return row * width + (word ^ (row & 1) * 16);
  }
  static __host__ __device__ constexpr int channel_of(int word) {
    return (word & ~15) + (word & 12) / 2 + (word & 2) * 4 + (word & 1);
  }
};

#ifdef KDA_CHECK_SM90

/// One chunk of one head.
struct ChunkOfHead {
  int local, head, query_head, rows;
  std::size_t chunk, token;

  __device__ explicit ChunkOfHead(const TensorCoreWork& work)
      : local(static_cast<int>(blockIdx.x % work.heads)),
        head(work.first_head + local),
        query_head(head / work.group),
        chunk(blockIdx.x / work.heads) {
    token = work.chunks[chunk].first, rows = static_cast<int>(work.chunks[chunk].count);
  }
};

template <DType dtype, int width, class Shared = PrepareShared<width>>
class ChunkInputs {
 public:
  using Image = ChunkImage<width>;
  using Words = Pair<dtype>;

  __device__ ChunkInputs(const DeviceProblem& p, const TensorCoreWork& work, Shared& shared)
      : p_(p),
        work_(work),
        chunk_(work),
        s_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / warp_lanes),
        lane_(thread_ % warp_lanes) {
    __builtin_assume(thread_ >= 0 && thread_ < preparing_threads);
  }

 protected:
  static constexpr int pairs = width / 2;
  template <int columns = width>
  __device__ std::uint32_t& pair(std::uint16_t* x, int row, int column) const {
    return *reinterpret_cast<std::uint32_t*>(x + Image::template at<columns>(row, column));
  }
  __device__ float2& G(int row, int k) const {
    return *reinterpret_cast<float2*>(s_.G + PrepareShared<width>::gate_at(row, k));
  }

  /// Rows of q and k, zeros beyond the last and beyond K.
  __device__ void begin_keys() const {
    constexpr int units = width / 8, rows_together = preparing_threads / units;
    const int k = thread_ % units * 8;
    const std::size_t from = p_.at(chunk_.token, p_.H, chunk_.query_head) * p_.K + k;
    const auto* const q = static_cast<const std::uint16_t*>(p_.q.data) + from;
    const auto* const keys = static_cast<const std::uint16_t*>(p_.k.data) + from;
    const unsigned stride = static_cast<unsigned>(p_.H) * p_.K;
    const bool in_units = p_.K % 8 == 0;
    for (int row = thread_ / units; row < image_rows; row += rows_together) {
      const int to = Image::template at<width>(row, k);
      const bool is_row = row < chunk_.rows, is_there = is_row && k < p_.K;
      const std::size_t at = is_row ? row * stride : 0;
      if (in_units) {
        begin_copy_16(s_.image.q_start + to, q + at, is_there);
        begin_copy_16(s_.image.k_start + to, keys + at, is_there);
      } else {
        for (int e = 0; e < 8; ++e) {
          const bool has_channel = is_row && k + e < p_.K;
          s_.image.q_start[to + e] = has_channel ? q[at + e] : std::uint16_t(0);
          s_.image.k_start[to + e] = has_channel ? keys[at + e] : std::uint16_t(0);
        }
      }
    }
  }

  /// Two neighbouring channels of every so many rows, by the first threads.
  static constexpr int rows_together = preparing_threads / pairs, fetching_threads = rows_together * pairs,
                       gates_of_thread = (image_rows + rows_together - 1) / rows_together;
  __device__ bool fetches() const {
    return fetching_threads == preparing_threads || thread_ < fetching_threads;
  }
  using Gates = float2[gates_of_thread];
  __device__ int gate_channel() const { return thread_ % pairs * 2; }
  __device__ int gate_row(int i) const { return thread_ / pairs + i * rows_together; }

  __device__ void fetch_gates(Gates& g) const { fetch_rows(p_.g, p_.HV, chunk_.head, g); }
  /// Rows of a head of `heads`, as they are stored, anything where there are none; all of them on their way
  /// before anybody waits.
  __device__ void fetch_rows(const Tensor& x, int heads, int head, Gates& g) const {
    const std::size_t from = p_.at(chunk_.token, heads, head) * p_.K, stride = std::size_t(heads) * p_.K;
    if (p_.K % 2 == 0) switch (x.dtype) {
        case DType::fp32:
          return fetch_pairs<float2>(x, from, stride, g, [](float2 pair) { return pair; });
        case DType::bf16:
          return fetch_pairs<std::uint32_t>(x, from, stride, g, widen<DType::bf16>);
        case DType::fp16:
          return fetch_pairs<std::uint32_t>(x, from, stride, g, widen<DType::fp16>);
        case DType::fp64:
          break;
      }
        // One after the other: by way of G, so that no code is needed for each of them.
#pragma unroll 1
    for (int i = 0; i < gates_of_thread; ++i)
#pragma unroll 1
      for (int e = 0; e < 2; ++e) {
        const int row = gate_row(i), k = gate_channel() + e;
        if (row < image_rows && fetches())
          s_.G[PrepareShared<width>::gate_at(row, k)] =
              row < chunk_.rows && k < p_.K ? load<float>(x, from + row * stride + k) : 0.0f;
      }
#pragma unroll
    for (int i = 0; i < gates_of_thread; ++i)
      g[i] = gate_row(i) < image_rows ? G(gate_row(i), gate_channel()) : float2{};
  }
  template <DType format>
  static __device__ float2 widen(std::uint32_t pair) {
    return {Pair<format>::first(pair), Pair<format>::second(pair)};
  }
  template <class Stored, class Widen>
  __device__ void fetch_pairs(const Tensor& x, std::size_t from, std::size_t stride_of_rows, Gates& g,
                              Widen widen) const {
    const int k = gate_channel() < p_.K ? gate_channel() : 0;
    const auto* const stored = static_cast<const Stored*>(x.data) + (from + k) / 2;
    const unsigned stride = static_cast<unsigned>(stride_of_rows / 2);
    Stored pairs_of_thread[gates_of_thread];
#pragma unroll
    for (int i = 0; i < gates_of_thread; ++i)
      pairs_of_thread[i] = stored[min(gate_row(i), chunk_.rows - 1) * stride];
#pragma unroll
    for (int i = 0; i < gates_of_thread; ++i) g[i] = widen(pairs_of_thread[i]);
  }

  /// log_decay(g, 0 or 1) of both channels of all rows into G, 0 beyond the last row and channel.
  template <class LogDecay>
  __device__ void store_log_decays(const Gates& g, LogDecay log_decay) const {
    store_rows(g, s_.G, log_decay);
  }
  template <class Change>
  __device__ void store_rows(const Gates& g, float* to, Change change) const {
    if (!fetches()) return;
    const int k = gate_channel();
    const bool has_first = k < p_.K, has_second = k + 1 < p_.K;
#pragma unroll
    for (int i = 0; i < gates_of_thread; ++i) {
      const int row = gate_row(i);
      if ((i + 1) * rows_together > image_rows && row >= image_rows) break;
      const bool is_row = row < chunk_.rows;
      const float2 x{change(g[i].x, 0), change(g[i].y, 1)};
      *reinterpret_cast<float2*>(to + PrepareShared<width>::gate_at(row, k)) = {
          is_row && has_first ? x.x : 0.0f, is_row && has_second ? x.y : 0.0f};
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
    float bias[] = {-0.0f, -0.0f};  // which leaves any number as it is
    for (int e = 0; e < 2; ++e)
      if (p_.dt_bias.data != nullptr && gate_channel() + e < p_.K)
        bias[e] = load<float>(p_.dt_bias, std::size_t(chunk_.head) * p_.K + gate_channel() + e);
    if (p_.gate == kda::Gate::lower_bound)
      return store_log_decays(g, [=](float x, int e) {
        const float y = x + bias[e];
        return factor * (within * div_full(1.0f, 1.0f + __expf(-(amplitude * y))));
      });
    store_log_decays(g, [=](float x, int e) {
      const float y = x + bias[e];
      return factor * (within * (y > kda::softplus_threshold<float> ? y : fast_softplus(y)));
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

  /// Four warps, or as many as there are channels for: the running sums of the gates, a thread a channel. The
  /// others: norms, 16 lanes a row, each of which adds up neighbouring channels.
  static constexpr int summing_warps = width > 4 * warp_lanes ? width / warp_lanes : 4;
  __device__ void sums_and_norms() {
    if (warp_ < summing_warps) {
      if (thread_ >= width) return;
      constexpr int together = 16;
      float sum = 0.0f;
#pragma unroll
      for (int first = 0; first < image_rows; first += together) {
        float G[together];
        const auto at = [&](int i) -> float& {
          return s_.G[PrepareShared<width>::row_word(first + i, thread_)];
        };
#pragma unroll
        for (int i = 0; i < together; ++i) G[i] = at(i);
#pragma unroll
        for (int i = 0; i < together; ++i) sum = first + i == 0 ? G[i] : sum + G[i], at(i) = sum;
      }
      s_.image.decay[PrepareShared<width>::channel_of(thread_)] = ex2_ftz(sum);
      return;
    }
    if (!p_.qk_l2norm) {
      const int row = thread_ - summing_warps * warp_lanes;
      if (row < image_rows) s_.q_norm[row] = s_.k_norm[row] = 1.0f;
      return;
    }
    const auto add = [](float& sum, float element) { sum = fmaf(element, element, sum); };
    if (p_.K > 64)
      return norms([&](const std::uint16_t* x, int row) {
        constexpr int units = width > 128 ? 2 : 1;
        float sum = 0.0f;
#pragma unroll
        for (int unit = 0; unit < units; ++unit) {
          const int first = (lane_ % 16 * units + unit) * 8;
          const uint4 words = *reinterpret_cast<const uint4*>(x + Image::template at<width>(row, first));
          for (const std::uint32_t word : {words.x, words.y, words.z, words.w})
            add(sum, Words::first(word)), add(sum, Words::second(word));
        }
        return sum;
      });
    int channels = 1;
    while (16 * channels < p_.K) channels *= 2;
    norms([&](const std::uint16_t* x, int row) {
      float sum = 0.0f;
#pragma unroll 1
      for (int e = 0; e < channels; ++e)
        add(sum, Words::first(x[Image::template at<width>(row, lane_ % 16 * channels + e)]));
      return sum;
    });
  }
  /// sum_of_lane(array, row): of the squares that this lane has of a row.
  template <class SumOfLane>
  __device__ void norms(SumOfLane sum_of_lane) {
    constexpr int together = 2 * (preparing_warps - summing_warps);
#pragma unroll 2
    for (int r = 2 * (warp_ - summing_warps) + lane_ / 16; r < 2 * image_rows; r += together) {
      const int row = r % image_rows;
      float sum = sum_of_lane(r < image_rows ? s_.image.q_start : s_.image.k_start, row);
#pragma unroll
      for (int side = 8; side > 0; side /= 2) sum = sum + __shfl_xor_sync(whole_warp, sum, side);
      if (lane_ % 16 == 0)
        (r < image_rows ? s_.q_norm : s_.k_norm)[row] = div_full(1.0f, sqrt_ftz(sum + 1e-6f));
    }
  }

  const DeviceProblem& p_;
  const TensorCoreWork& work_;
  const ChunkOfHead chunk_;
  Shared& s_;
  const int thread_, warp_, lane_;
};

#endif

}  // namespace kda_check::cuda
